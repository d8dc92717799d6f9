"""The LLM of python/examples, small, for the tests of text generation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch import nn

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CONTEXT = 64
#: A token of the first text of test_generate.py, so that this text ends early wherever ends are looked for.
END = 404
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "eos_token_id": END,
}


def example() -> Any:
    """The module `llm`. It is not a part of the tests, and imports transformers."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    import llm

    return llm


def small() -> nn.Module:
    """7.6 MB of weights."""
    llm = example()
    return llm.build({**llm.SCALED, **SIZES}, context=CONTEXT, seed=3)


def export(folder: Path) -> None:
    example().export(small(), folder, context=CONTEXT)
