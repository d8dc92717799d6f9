"""Drivers that refuse: a `libcuda.so.1` made for a test, found before the machine's own through LD_LIBRARY_PATH.

Made from nothing, every function is there and succeeds without doing anything, but for those that the test writes. Made over the
machine's own driver, every function is the driver's, but for those.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

NAMES = ("libcuda.so.1", "libcuda.so")
NO_DEVICE, STUB_LIBRARY, NOT_SUPPORTED = 100, 34, 801
VERSION = "int cuDriverGetVersion(int *v) {{ *v = {}; return 0; }}"


def library_path() -> Path:
    """The runtime under test."""
    chosen = os.environ.get("WEIGHTSTREAM_LIBRARY")
    if chosen:
        return Path(chosen)
    import weightstream

    return Path(weightstream.__file__).parent / "lib" / "libweightstream.so"


def called_functions() -> set[str]:
    """Names of driver functions in the runtime, and others: its strings lie end to end, so a name may have a tail; each beginning of
    it is taken for a name too, which hurts nobody."""
    found = re.findall(rb"cu(?:[A-Z][A-Za-z0-9]*?)(?:_v\d)?(?=cu[A-Z]|[^A-Za-z0-9_])", library_path().read_bytes())
    return {name[:end].decode() for name in found for end in range(5, len(name) + 1)}


def real_driver() -> str:
    """The file of the machine's own driver."""
    ctypes.CDLL(NAMES[0])
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.search(r"/libcuda\.so[.0-9]*$", path):
            return path
    raise AssertionError("libcuda was opened, and is not in /proc/self/maps")


def functions_of(driver: str) -> set[str]:
    """Names of everything that looks like a function of this driver; compiled code calls some that the runtime does not."""
    return {name.decode() for name in re.findall(rb"\0(cu[A-Z][A-Za-z0-9_]*)(?=\0)", Path(driver).read_bytes())}


def defined_in(source: str) -> set[str]:
    return set(re.findall(r"\b(cu[A-Z]\w*)\(", source))


def build(folder: Path, source: str = "", *, over_real: bool = False, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Builds the driver, with `source` as its own functions; returns the environment in which it is found."""
    folder.mkdir(parents=True, exist_ok=True)
    real = real_driver() if over_real else None
    names = functions_of(real) if real else called_functions()
    others = sorted(names - defined_in(source) - set(without))
    code, out = folder / "driver.c", folder / NAMES[0]
    rest = jumps(others, real) if real else "\n".join(f"int {name}(void) {{ return 0; }}" for name in others)
    code.write_text("#include <stddef.h>\n" + source + "\n" + rest)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-o", str(out), str(code), "-ldl"], check=True)
    (folder / NAMES[1]).symlink_to(NAMES[0])
    return before(folder)


def jumps(names: list[str], driver: str) -> str:
    """Functions that go on in the machine's own driver. It is opened by its path: linked, it would be asked for by its name, which is
    this library's too."""
    table = ", ".join(f'"{name}"' for name in names)
    fill = f"""
#include <dlfcn.h>
static const char *const names[] = {{{table}}};
__attribute__((visibility("hidden"))) void *slots[{len(names)}];
__attribute__((constructor)) static void fill(void) {{
  void *driver = dlopen("{driver}", RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; driver != NULL && i < {len(names)}; ++i) slots[i] = dlsym(driver, names[i]);
}}
"""
    code = [
        f'__asm__(".text\\n.globl {name}\\n.type {name},@function\\n{name}: jmp *slots+{8 * at}(%rip)");' for at, name in enumerate(names)
    ]
    return fill + "\n".join(code) + "\n"


def broken(folder: Path) -> dict[str, str]:
    """A file of the driver's name that is no library: what an installation of other files leaves behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_text("not a library\n")
    return before(folder)


def before(folder: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))}
