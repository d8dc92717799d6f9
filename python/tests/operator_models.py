"""Models of operators that the export decomposes, or for which the runtime has a function of its own.

Several operators share a program, since each export takes a while. Their outputs are told apart by their places.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from zoo import ZOO, Spec, register

#: An early torch, which exports nothing here, cannot say bounds.
LENGTH = torch.export.Dim.AUTO(min=20, max=64) if callable(torch.export.Dim.AUTO) else torch.export.Dim.AUTO

__all__ = ["OPERATORS", "ZOO"]


class Experts(nn.Module):
    """A mixture of experts as transformers exports it: tokens sorted by expert, counted by `histc`, multiplied in groups."""

    def __init__(self, dim: int = 32, hidden: int = 48, experts: int = 6, chosen: int = 2):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(dim, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, dim, dtype=torch.bfloat16) / 6)
        self.down = nn.Parameter(torch.randn(experts, dim, hidden, dtype=torch.bfloat16) / 7)

    def forward(self, x):
        weights, chosen = torch.topk(self.router(x).softmax(-1), self.chosen)
        of_row, order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(of_row.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        rows = x[order // self.chosen].bfloat16()
        gate, up = torch._grouped_mm(rows, self.gate_up.transpose(-2, -1), offs=ends).chunk(2, -1)
        out = torch._grouped_mm(F.silu(gate) * up, self.down.detach().transpose(-2, -1), offs=ends).float()
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0], device=x.device)
        return (out * weights.reshape(-1)[order].unsqueeze(-1))[back].reshape(x.shape[0], self.chosen, -1).sum(1)


class Complex(nn.Module):
    """Rotary positions as complex numbers, arithmetic with Python's complex numbers, and Fourier transforms; a sound of any length."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.register_buffer("turns", torch.polar(torch.ones(12, 8), torch.rand(12, 8)))
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x, angle, noise):
        y = self.mix(x)
        turned = torch.view_as_complex(y.reshape(*y.shape[:-1], 8, 2)) * self.turns * torch.polar(torch.ones_like(angle), angle)
        other = torch.complex(x[..., :8], y[..., 8:])
        joined = torch.cat([turned, other.conj()], 1)[:, 2:].transpose(1, 2)
        mixed = torch.where(angle.mT > 0.5, turned.mT, other.mT / (turned.mT + 3.0)) @ other
        sound = y.flatten(1)
        spectrum = torch.stft(sound, 16, 6, window=self.window, return_complex=True)
        plane = torch.fft.rfft2(y, norm="ortho")
        return (
            torch.view_as_real(turned).flatten(2),
            torch.view_as_real(joined.reshape(2, -1)),
            torch.view_as_real(mixed),
            (2.0 - turned).abs(),
            turned.angle() * (turned.real > 0.1),
            torch.exp(other * 0.1).imag + (other**2).sum(1, keepdim=True).real,
            spectrum.abs(),
            torch.fft.irfft2(plane * 2, s=(12, 16), norm="ortho"),
            torch.fft.irfft(plane, n=15),
            torch.view_as_real(torch.fft.ifft(turned, dim=1)),
            *self.numbers(angle),
            *self.shifted(noise),
        )

    def numbers(self, angle):
        z = torch.exp(1j * angle) * (2 - 1j) - 0.5j
        written = torch.zeros(2, 12, 8, dtype=torch.complex64)
        written[:, 3:] = z[:, 3:] / (angle[:, 3:] + 2j)
        written[0] += 1j
        powers = z**3 + z**-1 + z**0.5 + 2 ** (0.5 * z)
        return (*map(torch.view_as_real, (written, powers, 1 / z)), (written == 1j) | (written != written.conj()), z.view(torch.float32))

    def shifted(self, noise):
        """As a phase vocoder does it."""
        spectrum = torch.stft(noise, 16, 4, window=self.window, return_complex=True)
        turned = spectrum * torch.exp(1j * spectrum.abs())
        first, rest = turned.split_with_sizes([4, 5], 1)
        return torch.istft(turned, 16, 4, window=self.window), first.abs(), rest.angle() * (rest.abs() > 0.1)


class Images(nn.Module):
    """Pooling to sizes that divide nothing, resizing with a filter, and samples of a volume."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(40, 40)

    def forward(self, x, grid):
        y = self.mix(x)
        volume = y.reshape(1, 2, 4, 6, 20)
        return (
            *F.adaptive_max_pool2d(y, (5, 3), return_indices=True),
            F.adaptive_max_pool2d(y, (6, 8)),
            F.interpolate(y, (7, 9), mode="bilinear", antialias=True),
            F.interpolate(y, (20, 56), mode="bilinear", antialias=True, align_corners=True),
            F.interpolate(y, scale_factor=0.6, mode="bicubic", antialias=True),
            F.grid_sample(volume, grid, padding_mode="reflection", align_corners=False),
            F.grid_sample(volume, grid, mode="nearest", padding_mode="border", align_corners=True),
        )


class Arrays(nn.Module):
    """Scatters, inverses, histograms and int8 products, with a dynamic number of rows."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(9, 9)
        self.register_buffer("packed", torch.randint(-128, 128, (12, 9), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(12) / 50)

    def forward(self, x, source):
        y = self.mix(x)
        square = source[:3, :3].unsqueeze(0) + 3 * torch.eye(3)
        values, places = y.sort(dim=0, descending=True, stable=True)
        return (
            y.masked_scatter(x > 0, source),
            torch.linalg.inv(square),
            torch.histc(y, 7, -1, 1),
            torch.histc(y, 4),
            torch._weight_int8pack_mm(y, self.packed, self.scales),
            values,
            places,
            y * torch.hamming_window(9, periodic=False),
        )


class Noise(nn.Module):
    """Random numbers of the usual kinds, in one line each."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        n = (4096,)
        return (
            self.mix(x),
            torch.rand(n),
            torch.rand_like(x[:, :1].expand(2, 2048)),
            torch.randn(n),
            torch.randint(-3, 5, n),
            torch.randint(7, n, dtype=torch.int32),
        )


_ROWS = torch.export.Dim("rows", min=3, max=64)

OPERATORS = [
    register(spec).name
    for spec in (
        Spec(
            "op_experts",
            Experts,
            lambda: [(torch.randn(n, 32),) for n in (9, 1, 40)],
            "tokens go to experts by grouped products",
            dynamic_shapes=({0: torch.export.Dim("tokens", min=1, max=64)},),
            tolerance=1e-2,
            refused_on_a_gpu="aten._grouped_mm",
        ),
        Spec(
            "op_complex",
            Complex,
            lambda: [(torch.randn(2, 12, 16), torch.rand(2, 12, 8), torch.randn(2, n)) for n in (40, 21, 63)],
            "complex numbers are pairs of real ones",
            # Of the transform's sizes torch knows only for the example that they are different.
            dynamic_shapes=({}, {}, {1: LENGTH}),
        ),
        Spec(
            "op_images",
            Images,
            lambda: [(torch.randn(1, 2, 12, 40), torch.rand(1, 2, 3, 3, 3) * 3 - 1.5)],
            "windows and filters of images and volumes",
        ),
        Spec(
            "op_arrays",
            Arrays,
            lambda: [(torch.randn(n, 9), torch.randn(n, 9)) for n in (5, 3, 17)],
            "scatters, inverses, histograms and int8 products",
            dynamic_shapes=({0: _ROWS}, {0: _ROWS}),
        ),
        # Its numbers are not eager's: tests look at how they are spread.
        Spec(
            "op_noise",
            Noise,
            lambda: [(torch.randn(2, 4),)],
            "random numbers",
            tolerance=float("inf"),
            refused_on_a_gpu="aten.randint",
        ),
    )
]
