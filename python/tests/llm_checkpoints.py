"""Small checkpoints of language models, with random weights, in the layout of Hugging Face's libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = 300
#: Tokens in a pass over a prompt.
CHUNK = 8
TEXT = "the capital of france is paris and the river is the seine; a budget of bytes, once read, is not read again\n"
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
#: By the name of a family: what is special about its small model.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 1.0},
    "phi3": {"num_key_value_heads": 4, "head_dim": None},
    "mistral": {"sliding_window": 16},
    "smollm3": {},
    "granite": {},
    "olmo2": {},
    "qwen3_moe": MOE,
    "gpt_oss": {**MOE, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
}


def write(family: str, folder: Path, **settings: Any) -> Path:
    """A checkpoint with a tokenizer. The largest logits are far apart, so that rounding changes no token."""
    import transformers

    chosen = {**SMALL, "tie_word_embeddings": False, **FAMILIES.get(family, {}), **settings}
    config = transformers.AutoConfig.for_model(family, **{name: value for name, value in chosen.items() if value is not None})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(std=3 * weight.shape[-1] ** -0.5 if "lm_head" in name else weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def export(family: str, folder: Path) -> None:
    """A checkpoint in the folder ``checkpoint``, and beside it what the command makes of it."""
    from weightstream._command import main

    family, _, batch = family.partition("-of-")
    more = ["--batch", batch] if batch else ["--verify", "4"] if family == "llama" else []
    assert main(["llm", "export", str(write(family, folder / "checkpoint")), str(folder), "--chunk", str(CHUNK), *more]) == 0


def tokenizer() -> Any:
    """Pieces of bytes, some of them joined, and words for the roles of a chat."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special, initial_alphabet=alphabet))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)


class Draft:
    """Proposes what it is told to: every ``wrong``-th token is another one."""

    def __init__(self, real: Any, wrong: int):
        self.real, self.wrong, self.context, self.words, self.tokenizer = real, wrong, real.context, real.words, real.tokenizer

    def tokens(self, text: list[int], count: int, sampling: Any) -> list[int]:
        found = list(self.real.tokens(text, count, sampling))
        return [(token + 1) % self.words if self.wrong and (len(text) + at) % self.wrong == 0 else token for at, token in enumerate(found)]
