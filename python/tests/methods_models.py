"""Programs of several methods, as large models are deployed: they share weights, and what one method stores another one reads.

The reference is eager PyTorch: the methods are modules over the same parameters and buffers, called in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from device_under_test import DEVICE
from torch import nn
from torch.export import Dim, ExportedProgram
from zoo import SEEDED, Inputs, as_list, moved

Call = tuple[str, Inputs]


@dataclass(frozen=True)
class Methods:
    """A program of several methods."""

    name: str
    build: Callable[[], nn.Module]
    #: The methods of what `build` makes: modules over its parameters and buffers.
    methods: Callable[[nn.Module], dict[str, nn.Module]]
    #: Successive calls; the first of each method is also its example for `torch.export.export`.
    calls: Callable[[], list[Call]]
    #: What it shows: a sentence for people.
    shows: str
    dynamic_shapes: dict[str, Any] = field(default_factory=dict)
    shared_state: dict[str, str] | None = None
    constant_methods: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4
    offload: bool = True

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    def model(self) -> nn.Module:
        """A fresh copy of the whole model, weights and state as they are at first."""
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build().eval().requires_grad_(False)

    def passes(self, count: int | None = None) -> list[Call]:
        """`count` calls: the model's own list, repeated from its start as often as needed."""
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            once = self.calls()
        return [once[i % len(once)] for i in range(len(once) if count is None else count)]

    def eager(self, passes: list[Call]) -> list[list[torch.Tensor]]:
        """Outputs of eager PyTorch for these calls, in order, on a fresh copy, computed on the device under test."""
        methods = self.methods(moved(self.model(), DEVICE))
        with torch.no_grad(), torch.device(DEVICE):
            found = [as_list(methods[name](*(x.to(DEVICE, copy=True) for x in inputs))) for name, inputs in passes]
            return [[out.to("cpu", copy=True) for out in outputs] for outputs in found]

    def export(self, model: nn.Module | None = None) -> dict[str, ExportedProgram]:
        """`torch.export.export` of each method of one copy (default: a fresh one)."""
        examples = {}
        for name, inputs in self.passes():
            examples.setdefault(name, inputs)
        found = {}
        for name, method in self.methods(model or self.model()).items():
            with torch.no_grad():
                found[name] = torch.export.export(method, examples[name], dynamic_shapes=self.dynamic_shapes.get(name))
        return found


METHODS: dict[str, Methods] = {}


def register(methods: Methods) -> Methods:
    METHODS[methods.name] = methods
    return methods


VOCABULARY, DIM, HEADS, LONGEST = 256, 64, 4, 32


def heads(x: torch.Tensor) -> torch.Tensor:
    """[1, length, DIM] to [1, HEADS, length, DIM / HEADS]."""
    return x.view(1, x.shape[1], HEADS, -1).transpose(1, 2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention over what is `seen`, a mask of [queries, keys]."""
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -1e9)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(1, q.shape[2], DIM)


class Memory(nn.Module):
    """Keys and values of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, HEADS, LONGEST, DIM // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, LONGEST, DIM // HEADS))

    def store(self, where: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self.keys.index_copy_(2, where, k)
        self.values.index_copy_(2, where, v)


class Layer(nn.Module):
    """Pre-norm attention and a gated MLP; the attention is over a cache, if there is one."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.gate, self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.cache = Memory() if cached else None

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (heads(part) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        if self.cache is None:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        else:
            self.cache.store(positions, k, v)
            k, v = self.cache.keys, self.cache.values
            seen = torch.arange(LONGEST) <= positions[:, None]
        x = x + self.o(attend(q, k, v, seen))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Cross(nn.Module):
    """Attention to what the encoder has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv, self.o = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def store(self, memory: Memory, encoded: torch.Tensor) -> None:
        k, v = (heads(part) for part in self.kv(encoded).chunk(2, dim=-1))
        memory.store(torch.arange(encoded.shape[1]), k, v)

    def forward(self, x: torch.Tensor, memory: Memory, length: torch.Tensor) -> torch.Tensor:
        seen = (torch.arange(LONGEST) < length)[None]
        return x + self.o(attend(heads(self.q(self.norm(x))), memory.keys, memory.values, seen))


class Decoder(nn.Module):
    """Token numbers and positions in, logits out; tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LONGEST, DIM)
        self.layers = nn.ModuleList(Layer(cached=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(positions)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(self.norm(x))


def tokens_at(start: int, count: int) -> Inputs:
    return torch.randint(0, VOCABULARY, (1, count)), torch.arange(start, start + count)


def decoder_calls() -> list[Call]:
    """A prompt, tokens one by one, a second part of the prompt, tokens again."""
    calls = [("prefill", tokens_at(0, 7))] + [("decode", tokens_at(at, 1)) for at in range(7, 10)]
    return [*calls, ("prefill", tokens_at(10, 4)), *(("decode", tokens_at(at, 1)) for at in range(14, 17))]


LENGTH = Dim("length", min=2, max=LONGEST)
register(
    Methods(
        "methods_decoder",
        Decoder,
        lambda model: {"prefill": model, "decode": model},
        decoder_calls,
        "two methods over one cache; its buffers have one name in both",
        dynamic_shapes={"prefill": ({1: LENGTH}, {0: LENGTH})},
        constant_methods={"get_max_seq_len": LONGEST, "get_vocab_size": VOCABULARY, "use_kv_cache": True},
    )
)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.encoder = nn.ModuleList(Layer(cached=False) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(cached=True) for _ in range(2))
        self.cross = nn.ModuleList(Cross() for _ in range(2))
        self.memory = nn.ModuleList(Memory() for _ in range(2))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))
        self.norm = nn.LayerNorm(DIM)


class Encode(nn.Module):
    """Source tokens in; stores keys and values for the decoder, and returns the mean of what it encoded."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.model.embed(tokens)
        for layer in self.model.encoder:
            x = layer(x)
        for cross, memory in zip(self.model.cross, self.model.memory):
            cross.store(memory, x)
        self.model.length.copy_(torch.ones(1, tokens.shape[1], dtype=torch.int64).sum(dim=1))
        return x.mean(dim=1)


class Decode(nn.Module):
    """One token in, logits out. It only reads what the encoder has stored."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.embed, self.layers, self.cross, self.norm = model.embed, model.decoder, model.cross, model.norm
        self.memory = model.memory
        self.register_buffer("length", model.length)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embed(token)
        for layer, cross, memory in zip(self.layers, self.cross, self.memory):
            x = cross(layer(x, position), memory, self.length)
        return F.linear(self.norm(x), self.embed.weight)


def translation_calls() -> list[Call]:
    """Two sentences; the second one is shorter, and the decoder starts again."""

    def sentence(source: int, count: int) -> list[Call]:
        return [("encoder", tokens_at(0, source)[:1]), *(("decoder", tokens_at(at, 1)) for at in range(count))]

    return sentence(12, 3) + sentence(5, 4)


MEMORY = {f"decoder.memory.{layer}.{name}": f"encoder.model.memory.{layer}.{name}" for layer in range(2) for name in ("keys", "values")}
register(
    Methods(
        "methods_encdec",
        EncoderDecoder,
        lambda model: {"encoder": Encode(model), "decoder": Decode(model)},
        translation_calls,
        "a decoder reads what the encoder has stored, under other names: a map says so",
        dynamic_shapes={"encoder": ({1: LENGTH},)},
        shared_state={**MEMORY, "decoder.length": "encoder.model.length"},
    )
)


class Vision(nn.Module):
    """A picture in, 16 vectors out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 8, stride=8)
        self.layers = nn.ModuleList(Layer(cached=False) for _ in range(2))
        self.project = nn.Linear(DIM, DIM)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        x = self.patches(picture).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)


class VisionLanguage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision, self.text = Vision(), Decoder()


class Picture(nn.Module):
    def __init__(self, vision: Vision) -> None:
        super().__init__()
        self.vision = vision

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.vision(picture)


class FromEmbeddings(nn.Module):
    """Vectors and positions in, logits of the last one out."""

    def __init__(self, text: Decoder) -> None:
        super().__init__()
        self.place, self.layers, self.norm, self.lm_head = text.place, text.layers, text.norm, text.head

    def forward(self, vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = vectors + self.place(positions)
        for layer in self.layers:
            x = layer(x, positions)
        return self.lm_head(self.norm(x[:, -1:]))


def picture_calls() -> list[Call]:
    """A picture, a question, and two tokens of the answer; the vectors are drawn, as one list holds the inputs of all methods."""

    def vectors(start: int, count: int) -> Call:
        return "text_decoder", (torch.randn(1, count, DIM), torch.arange(start, start + count))

    words = [("token_embedding", tokens_at(0, count)[:1]) for count in (6, 1)]
    picture = ("vision_encoder", (torch.randn(1, 3, 32, 32),))
    return [picture, vectors(0, 16), words[0], vectors(16, 6), words[1], vectors(22, 1), words[1], vectors(23, 1)]


EVERY_LENGTH = Dim("length", min=1, max=LONGEST)
register(
    Methods(
        "methods_vlm",
        VisionLanguage,
        lambda model: {
            "vision_encoder": Picture(model.vision),
            "token_embedding": model.text.embed,
            "text_decoder": FromEmbeddings(model.text),
        },
        picture_calls,
        "three methods; the embedding of one is the last layer of another, under another name",
        dynamic_shapes={"token_embedding": ({1: EVERY_LENGTH},), "text_decoder": ({1: EVERY_LENGTH}, {0: EVERY_LENGTH})},
        constant_methods={"get_max_seq_len": LONGEST, "get_vocab_size": VOCABULARY},
    )
)


MELS, FRAMES = 16, 40


class Speech(nn.Module):
    """A spectrogram in, half as many vectors out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(MELS, DIM, 3, padding=1), nn.Conv1d(DIM, DIM, 3, stride=2, padding=1)
        self.place = nn.Parameter(torch.randn(FRAMES // 2, DIM), requires_grad=False)
        self.blocks = nn.ModuleList(Layer(cached=False) for _ in range(2))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.second(F.gelu(self.first(spectrogram)))).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Listener(nn.Module):
    """A layer of the decoder, and attention to what was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = Layer(cached=True), nn.LayerNorm(DIM)
        self.q, self.kv, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor, heard: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.layer(x, position)
        k, v = (heads(part) for part in self.kv(heard).chunk(2, dim=-1))
        seen = torch.ones(x.shape[1], heard.shape[1], dtype=torch.bool)
        return x + self.o(attend(heads(self.q(self.norm(x))), k, v, seen))


class Transcriber(nn.Module):
    """What the encoder gives, a token and its position in; logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.listeners = nn.ModuleList(Listener() for _ in range(2))
        self.last = nn.LayerNorm(DIM)

    def forward(self, token: torch.Tensor, heard: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embed(token)
        for listener in self.listeners:
            x = listener(x, heard, position)
        return F.linear(self.last(x), self.embed.weight)


class SpeechToText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Speech(), Transcriber()


def speech_calls() -> list[Call]:
    """A recording and four tokens of its text, twice."""

    def recording() -> list[Call]:
        heard = torch.randn(1, FRAMES // 2, DIM)
        tokens = [tokens_at(at, 1) for at in range(4)]
        return [("encoder", (torch.randn(1, MELS, FRAMES),)), *(("text_decoder", (token, heard, place)) for token, place in tokens)]

    return recording() + recording()


register(
    Methods(
        "methods_speech",
        SpeechToText,
        lambda model: {"encoder": model.encoder, "text_decoder": model.decoder},
        speech_calls,
        "a speech encoder, and a decoder that takes what it gives as an input; they share no weight",
    )
)
