"""Counts what a process asks of the CUDA driver, and the time that it waits for the answers.

A driver of our own stands before the machine's: it counts some functions, and all of them go on in the machine's own. Only callers
that open `libcuda.so.1` are counted: WeightStream does, PyTorch's runtime finds the driver's functions in another way.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "tests"))

#: Functions that take, give back or map memory, or wait for everything. None may run in a pass.
COUNTED = (
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuCtxSynchronize",
)
#: Functions that wait for one stream or event: passes may.
WAITS = ("cuStreamSynchronize", "cuEventSynchronize")
FUNCTIONS = COUNTED + WAITS
#: No name of an option: unknown ones are errors.
MARK = "COUNTED_CALLS_OF_THE_DRIVER"

SOURCE = """
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
typedef uint64_t Word;
struct Call { const char *name; uint64_t calls, nanoseconds, in_pass, nanoseconds_in_pass; };
static struct Call counted[] = { %(rows)s };
static uint64_t launches;
static void *real(const char *name) {
  static void *driver;
  if (!driver) driver = dlopen("%(driver)s", RTLD_NOW | RTLD_LOCAL);
  return dlsym(driver, name);
}
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1000000000ull * t.tv_sec + t.tv_nsec;
}
struct Call *counted_calls(int at) { return &counted[at]; }
void counted_pass_begins(void) { __atomic_store_n(&launches, 0, __ATOMIC_RELAXED); }
static int call(int at, Word a, Word b, Word c, Word d, Word e) {
  static int (*slots[%(count)d])(Word, Word, Word, Word, Word);
  if (!slots[at]) slots[at] = real(counted[at].name);
  uint64_t began = now();
  int code = slots[at](a, b, c, d, e);
  uint64_t took = now() - began;
  __atomic_fetch_add(&counted[at].nanoseconds, took, __ATOMIC_RELAXED);
  __atomic_fetch_add(&counted[at].calls, 1, __ATOMIC_RELAXED);
  if (__atomic_load_n(&launches, __ATOMIC_RELAXED)) {
    __atomic_fetch_add(&counted[at].in_pass, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counted[at].nanoseconds_in_pass, took, __ATOMIC_RELAXED);
  }
  return code;
}
int cuLaunchKernel(Word f, unsigned x, unsigned y, unsigned z, unsigned u, unsigned v, unsigned w, unsigned m, Word s, Word p, Word e) {
  static int (*slot)(Word, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Word, Word, Word);
  if (!slot) slot = real("cuLaunchKernel");
  __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
  return slot(f, x, y, z, u, v, w, m, s, p, e);
}
"""


class Call(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("calls", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("in_pass", ctypes.c_uint64),
        ("nanoseconds_in_pass", ctypes.c_uint64),
    ]


class Count(NamedTuple):
    """Of one function: calls and milliseconds in them, and those of the calls that came after the first kernel of a pass."""

    calls: int
    milliseconds: float
    in_pass: int
    milliseconds_in_pass: float


def restart_counted() -> None:
    """Begins this program anew with the counting driver, unless it is there."""
    if os.environ.get(MARK):
        return
    import fake_driver

    rows = ", ".join(f'{{"{name}", 0, 0, 0, 0}}' for name in FUNCTIONS)
    head = SOURCE % {"rows": rows, "driver": fake_driver.real_driver(), "count": len(FUNCTIONS)}
    body = "\n".join(
        f"int {name}(Word a, Word b, Word c, Word d, Word e) {{ return call({at}, a, b, c, d, e); }}" for at, name in enumerate(FUNCTIONS)
    )
    folder = Path(tempfile.mkdtemp(prefix="counted-driver-"))
    found = fake_driver.build(folder / "driver", f"{head}\n{body}", over_real=True)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **found, MARK: "1"})


def library() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.counted_calls.restype = ctypes.POINTER(Call)
    return driver


def pass_begins() -> None:
    """From here on calls belong to the boundary before a pass, until its first kernel."""
    if os.environ.get(MARK):
        library().counted_pass_begins()


def counts() -> dict[str, Count]:
    """What was called since the process began, without what was not called; empty where nothing is counted."""
    if not os.environ.get(MARK):
        return {}
    found = [library().counted_calls(at).contents for at in range(len(FUNCTIONS))]
    return {
        call.name.decode(): Count(call.calls, call.nanoseconds / 1e6, call.in_pass, call.nanoseconds_in_pass / 1e6)
        for call in found
        if call.calls
    }


def since(before: dict[str, Count]) -> dict[str, Count]:
    none = Count(0, 0.0, 0, 0.0)
    after = {
        name: Count(*(now - then for now, then in zip(count, before.get(name, none), strict=True))) for name, count in counts().items()
    }
    return {name: count for name, count in after.items() if count.calls}
