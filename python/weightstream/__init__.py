"""WeightStream: run AOTInductor-compiled models whose weights do not fit in device memory, through ExecuTorch.

Export::

    ws.export(model, inputs, "model.pte", "model.ptd", device="cpu")

which is short for::

    ep   = torch.export.export(model, inputs)
    ep   = ws.apply_weight_offload(ep)
    edge = to_edge_transform_and_lower(ep, partitioner=[ws.WeightStreamPartitioner(device="cpu")],
                                       compile_config=ws.edge_compile_config())
    ws.save(edge, "model.pte", "model.ptd")

Run::

    m = ws.Module("model.pte", "model.ptd", weight_offload_budget_mb=512)
    y = m.forward(x)

Run an eager module under a budget, without export::

    handle = ws.torch.offload(model, budget=4 << 30)

From a checkpoint to text::

    ws.llm.export("SmolLM2-135M-Instruct", "OUT")
    print(ws.LLM("OUT", budget="100MB").generate([{"role": "user", "content": "What is the capital of France?"}]))

Running needs torch alone. Exporting needs ExecuTorch's package too (``pip install 'weightstream[export]'``), and one of some releases
of torch. Both are asked for where they are first used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_EXPORTS = {
    "apply_weight_offload": "_export.passes.weight_reads",
    "WeightStreamPartitioner": "_export.compile.backend",
    "edge_compile_config": "_export.save",
    "save": "_export.save",
    "export": "_export.export",
    "QuantizedLinear": "_export.integers",
    "ExportError": "_native.errors",
    "Module": "_run.runtime",
    "Error": "_native.errors",
    "required_budget": "_run.runtime",
    "register": "_run.runtime",
    "set_options": "_run.runtime",
    "set_device_budget": "_run.shared_device",
    "device_report": "_run.shared_device",
    "Range": "_run.range",
    "LLM": "_llm.model",
}
_MODULES = ("llm", "torch")
__all__ = sorted(_EXPORTS)
__version__ = "0.1.0"
#: For CMake: `-DCMAKE_PREFIX_PATH="$(python -c 'import weightstream; print(weightstream.cmake_prefix_path)')"`.
cmake_prefix_path = str(Path(__file__).parent)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS and name not in _MODULES:
        raise AttributeError(f"module 'weightstream' has no attribute '{name}'")
    module = _EXPORTS.get(name, name)
    if module.startswith("_export.") or module == "llm":
        # Refuses a torch or an ExecuTorch that cannot export, before a module asks for something that is not there.
        importlib.import_module("._torch", __name__)
    found = importlib.import_module(f".{module}", __name__)
    return found if name in _MODULES else getattr(found, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_MODULES]
