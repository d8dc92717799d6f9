"""What the C++ compiler needs of CUDA: headers, and a driver library to link with. Neither needs a GPU, or a toolkit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from torch._inductor import cpp_builder

from ..._native.errors import ExportError

_HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")
#: Of this header (CCCL's), which Triton's wheel lacks, the host's code needs one macro: which of two branches it takes.
_NV_TARGET = "#pragma once\n#define NV_IF_ELSE_TARGET(condition, device, host) { host }\n"


def provide(work: Path) -> None:
    """Points this process's compilers to CUDA's headers and to a driver library made in ``work``."""
    from torch.utils import cpp_extension

    home = _home()
    cpp_extension.CUDA_HOME = str(home)
    if not (home / "include" / "nv" / "target").exists():
        own = work / "include"
        (own / "nv").mkdir(parents=True)
        (own / "nv" / "target").write_text(_NV_TARGET)
        # A folder of headers of torch's own making.
        os.environ["CUDA_INC_PATH"] = str(own)
    stubs = _driver_stub(home / "include" / "cuda.h", work / "stubs")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(stubs), os.environ.get("LIBRARY_PATH")]))


def _home() -> Path:
    """The folder above CUDA's headers: the machine's toolkit, or Triton's wheel. torch's own wheels lack `crt`."""
    import triton
    from torch.utils import cpp_extension

    wheel = Path(triton.__file__).parent / "backends" / "nvidia"
    homes = [Path(cpp_extension.CUDA_HOME), wheel] if cpp_extension.CUDA_HOME else [wheel]
    for home in homes:
        if all((home / "include" / name).exists() for name in _HEADERS):
            return home
    raise ExportError(
        f"the installed Triton lacks CUDA's headers {', '.join(_HEADERS)} ({wheel / 'include'}), and there is no CUDA toolkit; "
        "install Triton's own wheel, or set CUDA_HOME"
    )


def _driver_stub(header: Path, folder: Path) -> Path:
    """An empty `libcuda.so` with the driver's name, as in a toolkit's `stubs`: it has the functions of ``header``, and they do nothing."""
    text = header.read_text(errors="replace")
    names = {*re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text), *re.findall(r"#define\s+cu\w+\s+(cu[A-Z]\w*)", text)}
    folder.mkdir(parents=True)
    source = folder / "stub.cpp"
    # 100: no device.
    source.write_text("".join(f'extern "C" int {name}() {{ return 100; }}\n' for name in sorted(names)))
    command = [cpp_builder.get_cpp_compiler(), "-shared", "-fPIC", "-O0", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
    done = subprocess.run([*command, "-o", str(folder / "libcuda.so"), str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ExportError(f"the C++ compiler could not make a library to link with in the place of NVIDIA's driver:\n{done.stderr.strip()}")
    return folder
