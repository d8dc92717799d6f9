"""The main models: the ones that users bring. Small, but with every kind of layer that the CPU target must run.

`fact_models.py` holds the others, each made to provoke one thing that compiled code does with weights.
"""

from __future__ import annotations

import decoder_models  # noqa: F401  (registers its models)
import fact_models  # noqa: F401  (the same)
import form_models  # noqa: F401  (the same)
import operator_models  # noqa: F401  (the same)
import torch
import torch.nn.functional as F
from torch import nn
from zoo import ZOO, Spec, register

__all__ = ["MAIN", "ZOO"]


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight, as in Llama."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotary_tables(length: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine tables [length, dim] of rotary position embeddings."""
    frequency = 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Applies the rotary tables to [batch, heads, length, dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Bfloat16Weights(nn.Module):
    """Weights that are stored in bfloat16 and widened where they are used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128).bfloat16() for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(F.linear(x, layer.weight.float(), layer.bias.float()))
        return x


class DecoderLayer(nn.Module):
    """Llama's layer: pre-norm attention with rotary positions, then a gated MLP."""

    def __init__(self, dim: int, heads: int, hidden: int, length: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1), persistent=True)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = q @ k.transpose(-1, -2) * (dim // self.heads) ** -0.5 + self.mask.to(x.dtype)
        h = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, length, dim)
        x = x + self.o(h)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Decoder-only transformer, untied: token numbers in, logits out."""

    def __init__(self, vocabulary: int, dim: int, heads: int, hidden: int, layers: int, length: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, hidden, length) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        cos, sin = rotary_tables(length, dim // heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class CachedDecoder(nn.Module):
    """Decoder with tied embeddings that is called once per token; keys and values stay in mutated buffers."""

    def __init__(self, vocabulary: int, dim: int, heads: int, layers: int, length: int):
        super().__init__()
        self.heads, self.length = heads, length
        self.embed = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.o = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * dim, dim) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=0.1)
        for layer in range(layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{layer}", torch.zeros(1, heads, length, dim // heads))

    def attend(self, layer: int, h: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Attention of one new token over everything cached up to it."""
        q, k, v = (t.view(1, 1, self.heads, -1).transpose(1, 2) for t in self.qkv[layer](h).chunk(3, dim=-1))
        keys, values = getattr(self, f"keys{layer}"), getattr(self, f"values{layer}")
        keys.index_copy_(2, where, k)
        values.index_copy_(2, where, v)
        scores = q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.arange(self.length) > where, float("-inf"))
        return (torch.softmax(scores, dim=-1) @ values).transpose(1, 2).reshape(1, 1, -1)

    def forward(self, token: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        x = self.embed(token) + self.position(where)
        for layer, (qkv_norm, mlp_norm) in enumerate(zip(self.norms[:-1:2], self.norms[1::2], strict=True)):
            x = x + self.o[layer](self.attend(layer, qkv_norm(x), where))
            x = x + self.down[layer](F.gelu(self.up[layer](mlp_norm(x))))
        return self.head(self.norms[-1](x))


class Encoder(nn.Module):
    """BERT-like: learned positions and segment types, post-norm, fused attention, a pooled output too."""

    def __init__(self, vocabulary: int, dim: int, heads: int, layers: int, length: int):
        super().__init__()
        self.heads = heads
        self.words, self.types = nn.Embedding(vocabulary, dim), nn.Embedding(2, dim)
        self.positions = nn.Parameter(0.5 * torch.randn(1, length, dim))
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.o = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * dim, dim) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers))
        self.pool = nn.Linear(dim, dim)

    def forward(self, words: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.words(words) + self.types(types) + self.positions)
        for layer, qkv in enumerate(self.qkv):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, dim=-1))
            h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = self.norms[2 * layer](x + self.o[layer](h))
            x = self.norms[2 * layer + 1](x + self.down[layer](F.gelu(self.up[layer](x))))
        return x, torch.tanh(self.pool(x[:, 0]))


class Mlp(nn.Module):
    """Layers of one width, so that several weights have the same size."""

    def __init__(self, dim: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.head = nn.Linear(dim, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x)) + x
        return self.head(x)


class Cnn(nn.Module):
    """Convolutions (plain, strided, depthwise), batch norm, residuals, both kinds of pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.conv2, self.norm2 = nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48)
        self.depthwise = nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.pointwise = nn.Conv2d(48, 48, 1)
        self.body = nn.ModuleList(nn.Conv2d(48, 48, 3, padding=1) for _ in range(5))
        self.head = nn.Linear(48, 10)
        for norm in (self.norm1, self.norm2):
            norm.running_mean.normal_(0, 0.2)
            norm.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        x = x + self.pointwise(F.relu(self.depthwise(x)))
        for conv in self.body:
            x = x + F.relu(conv(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Experts(nn.Module):
    """Mixture of experts as one batched product per matrix; the gate keeps the best expert by a mask, not a branch."""

    def __init__(self, dim: int, hidden: int, experts: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, dim, hidden) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, dim) * hidden**-0.5)
        self.shared = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        p = torch.softmax(self.gate(h), dim=-1)
        p = torch.where(p == p.amax(-1, keepdim=True), p, torch.zeros_like(p))
        y = torch.bmm(F.silu(torch.bmm(h.expand(self.up.shape[0], -1, -1), self.up)), self.down)
        return x + self.shared(h) + (y * p.t().unsqueeze(-1)).sum(0)


class AnyLength(nn.Module):
    """Self-attention over a sequence whose length is decided at run time."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.inner, self.qkv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.inner(x))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(h).chunk(3, dim=-1))
        scores = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
        return self.norm(h + self.o((scores @ v).transpose(1, 2).flatten(2)))


class Pages(nn.Module):
    """Weights that fill a page of a GPU each, any number of rows, and a state."""

    def __init__(self, blocks: int):
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(512, 1024, bias=False) for _ in range(blocks))
        self.downs = nn.ModuleList(nn.Linear(1024, 512, bias=False) for _ in range(blocks))
        self.register_buffer("seen", torch.zeros(512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(torch.tanh(up(x)))
        self.seen.add_(x.mean(0))
        return x + self.seen


class Int8Linear(nn.Module):
    """int8 weight and one scale per output channel, of a float layer."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        scale = layer.weight.abs().amax(1) / 127
        self.register_buffer("weight", torch.round(layer.weight / scale[:, None]).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class GroupedInt8Linear(nn.Module):
    """int8 weight [out, groups, group] with one scale per group of inputs, of a float layer."""

    def __init__(self, layer: nn.Linear, group: int = 32):
        super().__init__()
        grouped = layer.weight.unflatten(1, (-1, group))
        scale = grouped.abs().amax(2, keepdim=True) / 127
        self.register_buffer("weight", torch.round(grouped / scale).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (self.weight.to(x.dtype) * self.scale).flatten(1))


class Int8Embedding(nn.Module):
    """int8 table with one scale per row; the rows are widened after they were looked up."""

    def __init__(self, table: nn.Embedding):
        super().__init__()
        scale = table.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("table", torch.round(table.weight / scale).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.table).to(self.scale.dtype) * F.embedding(tokens, self.scale)


class Int8Conv(nn.Module):
    """int8 convolution of three by three with one scale per output channel."""

    def __init__(self, channels: int):
        super().__init__()
        weight = torch.randn(channels, channels, 3, 3) / (3 * channels**0.5)
        scale = weight.abs().amax((1, 2, 3), keepdim=True) / 127
        self.register_buffer("weight", torch.round(weight / scale).to(torch.int8))
        self.register_buffer("scale", scale.view(-1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(F.conv2d(x, self.weight.to(x.dtype), padding=1) * self.scale)


def quantized(model: nn.Module, linear: type[nn.Module]) -> nn.Module:
    """The model with int8 weights in its linear layers and embeddings, as weight-only quantisers leave it."""
    with torch.no_grad():
        for name, child in model.named_children():
            if isinstance(child, nn.Linear):
                setattr(model, name, linear(child))
            elif isinstance(child, nn.Embedding):
                setattr(model, name, Int8Embedding(child))
            else:
                quantized(child, linear)
    return model


def tokens(vocabulary: int, length: int, count: int = 4) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, vocabulary, (1, length)),) for _ in range(count)]


def cached_calls() -> list[tuple[torch.Tensor, ...]]:
    """Ten calls, one token each. Asked for more, the sequence starts over on a cache that holds the last one."""
    return [(torch.randint(0, 1000, (1, 1)), torch.tensor([where])) for where in range(10)]


def encoder_inputs() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randint(0, 2000, (1, 32)), torch.randint(0, 2, (1, 32))) for _ in range(4)]


# 108 MiB of fp32 weights in 8 layers. No matrix is above 3 MiB, so the floor (two kernels' weights, the
# embedding's lease and one copy in flight) stays near a tenth of the whole.
register(
    Spec(
        "demo",
        lambda: Decoder(vocabulary=1024, dim=512, heads=8, hidden=1536, layers=8, length=16),
        lambda: tokens(1024, 16),
        "decoder-only transformer, untied, at least 100 MB of weights, 8 layers, floor at most 15 % of them",
    )
)
register(
    Spec(
        "mlp",
        lambda: Mlp(256, 6),
        lambda: [(torch.randn(8, 256),) for _ in range(4)],
        "multi-layer perceptron: addmm, weights of equal size",
    )
)
register(
    Spec(
        "fifty_megabytes",
        lambda: Mlp(816, 20),
        lambda: [(torch.randn(8, 816),) for _ in range(4)],
        "50 MB in 20 layers that are no whole pages: budgets that change",
    )
)
register(
    Spec(
        "mlp_baseline",
        lambda: Mlp(256, 6),
        lambda: [(torch.randn(8, 256),) for _ in range(4)],
        "the same perceptron exported without the pass: no probes, all weights loaded up front",
        offload=False,
        seed_name="mlp",
    )
)
register(
    Spec(
        "cnn",
        Cnn,
        lambda: [(torch.randn(2, 3, 32, 32),) for _ in range(4)],
        "small convolutional net: convolutions, batch norm, pooling",
    )
)
register(
    Spec(
        "encoder",
        lambda: Encoder(vocabulary=2000, dim=128, heads=4, layers=3, length=32),
        encoder_inputs,
        "BERT-like encoder with learned positions at batch 1: the position weight has an activation's shape",
    )
)
register(
    Spec(
        "kv_decoder",
        lambda: CachedDecoder(vocabulary=1000, dim=128, heads=4, layers=3, length=16),
        cached_calls,
        "decoder with tied embeddings and a mutated key-value cache, called ten times",
        stateful=True,
    )
)
register(
    Spec(
        "experts",
        lambda: nn.Sequential(*(Experts(dim=64, hidden=128, experts=4) for _ in range(3))),
        lambda: [(torch.randn(12, 64),) for _ in range(4)],
        "mixture-of-experts block without data-dependent control flow",
    )
)
register(
    Spec(
        "dynamic",
        lambda: nn.Sequential(*(AnyLength(96, 4) for _ in range(3))),
        lambda: [(torch.randn(1, length, 96),) for length in (17, 3, 64)],
        "one dynamic dimension, run at three sizes",
        dynamic_shapes=({1: torch.export.Dim("length", min=2, max=64)},),
    )
)
register(
    Spec(
        "decoder_bf16",
        lambda: Decoder(vocabulary=256, dim=128, heads=4, hidden=384, layers=2, length=16).bfloat16(),
        lambda: tokens(256, 16),
        "the demo's decoder, small, in bfloat16 throughout",
        # Compiled kernels keep float32 inside a fusion, where eager rounds after every operator: ours is nearer to the
        # truth (test_bf16_is_as_near_to_float32_as_eager_is). Eager is off it by up to 8.3e-3, and both may be, to opposite sides.
        tolerance=1.7e-2,
    )
)
register(
    Spec(
        "bf16_weights",
        Bfloat16Weights,
        lambda: [(torch.randn(4, 128),), (torch.randn(4, 128),)],
        "bfloat16 weights under float32 activations",
        tolerance=1e-2,
    )
)

register(
    Spec(
        "int8_decoder",
        lambda: quantized(Decoder(vocabulary=256, dim=128, heads=4, hidden=384, layers=2, length=16), Int8Linear),
        lambda: tokens(256, 16),
        "the demo's decoder, small, with int8 weights and a scale per channel",
    )
)
register(
    Spec(
        "int8_groups",
        lambda: quantized(Decoder(vocabulary=256, dim=128, heads=4, hidden=256, layers=1, length=16), GroupedInt8Linear),
        lambda: tokens(256, 16),
        "int8 weights [out, groups, group] with a scale per group",
    )
)
register(
    Spec(
        "int8_cnn",
        lambda: nn.Sequential(*(Int8Conv(32) for _ in range(4))),
        lambda: [(torch.randn(1, 32, 12, 12),) for _ in range(4)],
        "int8 convolutions",
    )
)

# On a GPU a plan needs several pages of 2 MiB.
register(
    Spec(
        "pages",
        lambda: Pages(3),
        lambda: [(torch.randn(rows, 512),) for rows in (5, 2, 9)],
        "a model that streams on a GPU too, with a state, run at three sizes",
        dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=16)},),
        stateful=True,
    )
)

#: The models that must be right at every budget, over twenty passes.
MAIN = ["demo", "mlp", "cnn", "encoder", "kv_decoder", "experts", "dynamic", "decoder_bf16", "bf16_weights"]
MAIN += ["int8_decoder", "int8_groups", "int8_cnn"]
