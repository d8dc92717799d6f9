"""Three eager modules share one budget: an encoder, a denoiser that runs many times, and a decoder, as in image generation.

    python python/examples/three_modules.py [cuda:0]

The modules are ordinary PyTorch with random weights in host memory. Together they have more bytes than the budget. What each holds
follows how often it runs. Every output is compared with that of the same module without offloading.
"""

from __future__ import annotations

import copy
import sys

import torch
import weightstream as ws
from torch import nn

MB = 1 << 20
STEPS, IMAGES = 8, 4


class Layers(nn.Module):
    """Linear layers of one width, each added to what came before."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) / 2 + x / 2
        return x


def build(width: int) -> dict[str, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return {"encoder": Layers(width, 12), "denoiser": Layers(width, 20), "decoder": Layers(width, 8)}


def generate(models: dict[str, nn.Module], x: torch.Tensor) -> torch.Tensor:
    x = models["encoder"](x)
    for _ in range(STEPS):
        x = models["denoiser"](x)
    return models["decoder"](x)


def megabytes(model: nn.Module) -> float:
    return sum(p.numel() * p.element_size() for p in model.parameters()) / MB


@torch.inference_mode()
def run(device: str) -> tuple[str, bool]:
    """The table, and whether all outputs were right."""
    width = 512 if device == "cpu" else 2048
    models = build(width)
    inputs = [torch.randn(4, width, generator=torch.Generator().manual_seed(n)).to(device) for n in range(IMAGES)]
    # The reference needs room for everything.
    whole = {name: copy.deepcopy(model).to(device) for name, model in models.items()}
    expected = [generate(whole, x) for x in inputs]
    del whole

    budget = int(0.7 * sum(map(megabytes, models.values()))) * MB
    ws.set_device_budget(device, budget)
    handles = {name: ws.torch.offload(model, shared=True, device=device, name=name) for name, model in models.items()}
    right = True
    lines = [f"{'image':>7}  {'module':>8}  {'MB':>6}  {'holds':>6}  {'copied per pass':>15}"]
    before = dict.fromkeys(handles, 0)
    for image, x in enumerate(inputs):
        right = torch.equal(generate(models, x), expected[image]) and right
        holds = {tenant["name"]: tenant["held_bytes"] / MB for tenant in ws.device_report(device)["tenants"]}
        for name, handle in handles.items():
            copied = handle.stats()["bytes_copied"]
            per_pass = (copied - before[name]) / MB / (STEPS if name == "denoiser" else 1)
            before[name] = copied
            lines.append(f"{image:>7}  {name:>8}  {megabytes(models[name]):>6.1f}  {holds[name]:>6.1f}  {per_pass:>15.1f}")
    for handle in handles.values():
        handle.remove()
    ws.set_device_budget(device, "auto")
    return f"{device}, {sum(map(megabytes, models.values())):.0f} MB of weights under {budget // MB} MB\n\n" + "\n".join(lines), right


def main() -> int:
    text, right = run(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    print(f"{text}\n\nall outputs {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
