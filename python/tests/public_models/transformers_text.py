"""transformers: decoders with a static cache, decoders without one, and encoders of text."""

from __future__ import annotations

from typing import Any

import torch
from decoder_models import COMMON, LENGTH, Decoder, causal, inputs
from torch import nn
from torch.export import Dim

from public_models.entry import BATCH, Called, enter, model_of, stirred

LIBRARY = "transformers"
VOCABULARY = COMMON["vocab_size"]
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 8}
ROUTED = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", COMMON),
    "qwen2": ("Qwen2Config", COMMON),
    "qwen3": ("Qwen3Config", {**COMMON, "head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", {**COMMON, "head_dim": 16, "sliding_window": 16}),
    "phi3": ("Phi3Config", {**COMMON, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}),
    "mistral": ("MistralConfig", {**COMMON, "sliding_window": None}),
    "smollm3": ("SmolLM3Config", {**COMMON, "pad_token_id": 0}),
    "olmo2": ("Olmo2Config", COMMON),
    "granite": ("GraniteConfig", COMMON),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in COMMON.items() if k != "num_key_value_heads"}),
    "qwen3_moe": ("Qwen3MoeConfig", {**COMMON, **MOE, "head_dim": 16}),
}
WITHOUT_CACHE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", GPT2),
    "opt": ("OPTConfig", {**COMMON, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "falcon": ("FalconConfig", {**COMMON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**COMMON, **LATENT, **ROUTED, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_shared_experts": 1},
    ),
}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", COMMON),
    "roberta": ("RobertaModel", "RobertaConfig", COMMON),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    ),
    "modernbert": ("ModernBertModel", "ModernBertConfig", {**COMMON, "pad_token_id": 0, "local_attention": 16}),
    "deberta": ("DebertaV2Model", "DebertaV2Config", COMMON),
    "t5_encoder": (
        "T5EncoderModel",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    ),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", {**COMMON, "eos_token_id": 255}),
}


def decoder(config: str, settings: dict[str, Any]) -> nn.Module:
    return stirred(causal(config, **settings))


def without_cache(config: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    built = getattr(transformers, config)(**settings, use_cache=False)
    return Called(transformers.AutoModelForCausalLM.from_config(built), ("input_ids",), {"use_cache": False})


def encoder(model: str, config: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    return Called(getattr(transformers, model)(getattr(transformers, config)(**settings)), ("input_ids", "attention_mask"), {})


def bart_encoder() -> nn.Module:
    import transformers

    sizes = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
    config = transformers.BartConfig(vocab_size=VOCABULARY, d_model=64, max_position_embeddings=64, **sizes)
    return Called(transformers.BartModel(config).get_encoder(), ("input_ids", "attention_mask"), {})


def texts() -> list[tuple[torch.Tensor, ...]]:
    """Tokens and masks whose last few tokens are padding."""
    found = []
    for batch, length in ((2, 24), (1, 7), (3, 48)):
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length - 3 :] = 0
        found.append((torch.randint(3, VOCABULARY - 1, (batch, length)), mask))
    return found


def sequences() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, VOCABULARY, (1, length)),) for length in (24, 7, 48)]


for name, (config, settings) in DECODERS.items():
    spec = Decoder(
        f"{LIBRARY}_{name}",
        lambda config=config, settings=settings: decoder(config, settings),
        inputs,
        "prefill and decode",
        stateful=True,
        dynamic_shapes=({1: LENGTH}, {0: LENGTH}),
    )
    enter(LIBRARY, spec, "static cache; prefill and decode, any number of tokens")

LENGTHS = Dim("length", min=4, max=48)
BATCHES = ({0: BATCH, 1: LENGTHS}, {0: BATCH, 1: LENGTHS})
for name, (config, settings) in WITHOUT_CACHE.items():
    model_of(
        LIBRARY,
        name,
        lambda config=config, settings=settings: without_cache(config, settings),
        sequences,
        "no cache; any length",
        ({1: LENGTHS},),
    )
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
model_of(
    LIBRARY,
    "mamba",
    lambda: without_cache("MambaConfig", MAMBA),
    lambda: [(torch.randint(0, VOCABULARY, (1, 24)),) for _ in range(2)],
    "no cache; one length",
)
for name, (model, config, settings) in ENCODERS.items():
    model_of(
        LIBRARY,
        name,
        lambda model=model, config=config, settings=settings: encoder(model, config, settings),
        texts,
        "any batch and length",
        BATCHES,
    )
model_of(LIBRARY, "bart_encoder", bart_encoder, texts, "any batch and length", BATCHES)
