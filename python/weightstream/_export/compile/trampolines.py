"""The static archive that binds a compiled library to the runtime's functions.

A library compiled without libtorch calls ``aoti_torch_*`` functions, and on a GPU a dozen ``cuda*`` ones
of CUDA's runtime library. They are not looked up by the dynamic linker: exporting such names from a process
breaks torch's own packages in it, and not every process has that library. Instead this archive is linked
into the library at export. It holds

* one hidden trampoline per name in ``shims.txt``, each in a member of its own, so that the linker
  takes only those which the library calls. A trampoline jumps through a slot in the section
  ``weightstream_shims``;
* ``weightstream_bind_v1``, the only exported symbol: it fills the slots from a lookup function;
* real functions for the numbers of dtypes, devices and layouts, which static initialisers call when
  the library is opened, before anything is bound.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

ARCHIVE_NAME = "libweightstream_trampolines.a"
LINK_NAME = "weightstream_trampolines"
SHIMS_FILE = Path(__file__).with_name("shims.txt")

_DTYPES = [
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
]
_DEVICES = ["cpu", "cuda", "meta", "xpu", "mps", "privateuse1"]
_LAYOUTS = [
    "strided",
    "sparse_coo",
    "sparse_csr",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "_mkldnn",
    "jagged",
]
_FORMATS = ["contiguous_format", "channels_last", "channels_last_3d", "preserve_format"]

CONSTANT_FUNCTIONS = tuple(
    f"aoti_torch_{group}_{name}"
    for group, names in (
        ("dtype", _DTYPES),
        ("device_type", _DEVICES),
        ("layout", _LAYOUTS),
        ("memory_format", _FORMATS),
    )
    for name in names
)

_BIND_SOURCE = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {
struct Entry { const char *name; void *target; };
}

extern "C" {
extern Entry __start_weightstream_shims[] __attribute__((visibility("hidden")));
extern Entry __stop_weightstream_shims[] __attribute__((visibility("hidden")));

// What a slot holds until it is bound. Reached only by a host that runs the library without binding it.
__attribute__((visibility("hidden"), noreturn)) void weightstream_unbound() {
  std::fputs("weightstream: a compiled library was run before weightstream_bind_v1\n", stderr);
  std::abort();
}

__attribute__((visibility("default"))) int64_t weightstream_bind_v1(
    void *(*lookup)(const char *name), const char **missing) {
  int64_t count = 0;
  if (missing) *missing = nullptr;
  for (Entry *e = __start_weightstream_shims; e != __stop_weightstream_shims; ++e) {
    void *target = lookup(e->name);
    if (target) { e->target = target; continue; }
    if (count++ == 0 && missing) *missing = e->name;
  }
  return count;
}
}
"""

# Bounds checks of the kernels come here. The runtime records the failure, but only an exception stops
# the kernel before it reads out of bounds, and only C++ can throw one. It unwinds through the compiled
# wrapper, which turns it into an error code. Inside an OpenMP region it would end the process, so
# programs are compiled for one thread.
_CHECK_SOURCE = r"""
#include <cstdint>
#include <stdexcept>

namespace {
struct Entry { const char *name; void *target; };
using Check = void (*)(bool, const char *, const char *, uint32_t, const char *);
}

extern "C" {
__attribute__((visibility("hidden"), noreturn)) void weightstream_unbound();
__attribute__((section("weightstream_shims"), used, visibility("hidden")))
Entry weightstream_check_slot = {"aoti_torch_check", reinterpret_cast<void *>(&weightstream_unbound)};

__attribute__((visibility("hidden"))) void aoti_torch_check(
    bool cond, const char *func, const char *file, uint32_t line, const char *msg) {
  if (cond) return;
  reinterpret_cast<Check>(weightstream_check_slot.target)(cond, func, file, line, msg);
  throw std::runtime_error(msg ? msg : "a check of the compiled code failed");
}
}
"""

_JUMP_SOURCE = """\t.text
\t.globl {name}
\t.hidden {name}
\t.type {name}, @function
\t.p2align 4
{name}:
\tendbr64
\tjmp *.Lslot(%rip)
\t.size {name}, .-{name}
\t.section .rodata.str1.1,"aMS",@progbits,1
.Lname:
\t.string "{name}"
\t.hidden weightstream_unbound
\t.section weightstream_shims,"aw",@progbits
\t.p2align 3
\t.quad .Lname
.Lslot:
\t.quad weightstream_unbound
\t.section .note.GNU-stack,"",@progbits
"""


# What the dynamic linker must not be asked for. The driver's functions (``cu*``) are: the library names the driver as needed.
_BOUND = re.compile(r"aoti_|(__)?cuda[A-Z]")


class TrampolineError(RuntimeError):
    """The archive could not be built, or a library could not be read."""


def shim_names() -> list[str]:
    """The functions that the runtime provides, one per line of ``shims.txt``."""
    names = SHIMS_FILE.read_text(encoding="ascii").split()
    if not names or names != sorted(set(names)):
        raise TrampolineError(f"{SHIMS_FILE} must list each function once, sorted")
    return names


def sources() -> dict[str, str]:
    """Every source file of the archive, by file name. A cache may key on their hash."""
    files = {"bind.cpp": _BIND_SOURCE, "check.cpp": _CHECK_SOURCE, "constants.cpp": _constants_source()}
    for name in shim_names():
        if name != "aoti_torch_check":
            files[f"{name}.s"] = _JUMP_SOURCE.format(name=name)
    return files


def build(outdir: str | os.PathLike[str], cxx: str | None = None) -> Path:
    """Builds the archive in `outdir` with the C++ compiler `cxx` and returns its path."""
    cxx = _tool(cxx or os.environ.get("CXX") or "c++", "a C++ compiler", "set CXX to one")
    ar = _tool(os.environ.get("AR") or "ar", "the archiver", "install binutils")
    out = Path(outdir)
    out.mkdir(parents=True, exist_ok=True)
    archive = out / ARCHIVE_NAME
    with tempfile.TemporaryDirectory(dir=out) as work:
        files = sources()
        for name, text in files.items():
            Path(work, name).write_text(text, encoding="ascii")
        _call([cxx, "-O2", "-fPIC", "-std=c++17", "-c", *files], work)
        objects = [f"{Path(name).stem}.o" for name in files]
        _call([ar, "rcsD", ARCHIVE_NAME, *objects], work)
        os.replace(Path(work, ARCHIVE_NAME), archive)
    return archive


@functools.cache
def archive(cxx: str) -> bytes:
    """The archive's bytes. Building it takes two seconds of a processor, and each method of a program needs it."""
    with tempfile.TemporaryDirectory(prefix="weightstream-") as work:
        return build(work, cxx).read_bytes()


def check_library(path: str | os.PathLike[str]) -> list[str]:
    """The ``aoti_*`` and CUDA runtime functions that the linked library still lacks: what the runtime does not provide."""
    names = (name for name, section in _dynamic_symbols(Path(path)) if section == 0)
    return sorted({name for name in names if _BOUND.match(name)})


def is_bindable(path: str | os.PathLike[str]) -> bool:
    """Whether the library exports ``weightstream_bind_v1``: the archive was linked into it."""
    return any(name == "weightstream_bind_v1" and section != 0 for name, section in _dynamic_symbols(Path(path)))


def _constants_source() -> str:
    """Functions with fixed answers, read from the installed torch so that the numbers are its own."""
    import torch

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    lines = ["#include <cstdint>", 'extern "C" {']
    for name in CONSTANT_FUNCTIONS:
        function = getattr(library, name)
        function.restype = ctypes.c_int32
        lines.append(f'__attribute__((visibility("hidden"))) int32_t {name}() {{ return {function()}; }}')
    version = library.aoti_torch_abi_version
    version.restype = ctypes.c_uint64
    lines.append(f'__attribute__((visibility("hidden"))) uint64_t aoti_torch_abi_version() {{ return {version()}ULL; }}')
    return "\n".join([*lines, "}"]) + "\n"


def _tool(name: str, what: str, cure: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise TrampolineError(f"{what} is needed to export a model and '{name}' was not found: {cure}")
    return found


def _call(command: list[str], cwd: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = " ".join(command[:6])
        raise TrampolineError(f"'{shown} ...' failed with status {done.returncode}:\n{done.stderr.strip()}")


def _dynamic_symbols(path: Path) -> list[tuple[str, int]]:
    """(name, section index) of every dynamic symbol of a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise TrampolineError(f"{path} is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    found = []
    for section in sections:
        kind, offset, size, link = section[1], section[4], section[5], section[6]
        if kind != 11:  # SHT_DYNSYM
            continue
        strings = sections[link]
        names = data[strings[4] : strings[4] + strings[5]]
        for at in range(offset, offset + size, 24):
            name, _info, _other, index = struct.unpack_from("<IBBH", data, at)
            found.append((names[name : names.index(b"\0", name)].decode("ascii", "replace"), index))
    return found
