"""What is bound in a compiled library, and what an export refuses. Needs a C compiler and no GPU."""

import ctypes
import subprocess

import pytest
from weightstream._export.compile import trampolines

SOURCE = """
#include <stddef.h>
int cudaMalloc(void **, size_t);
const char *cudaGetErrorString(int);
int aoti_torch_create_cuda_stream_guard(void *, int, void **);
int call(void **p) {{ return cudaMalloc(p, 8) + aoti_torch_create_cuda_stream_guard(0, 0, p) + (cudaGetErrorString(0) != 0); }}
{more}
"""


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trampolines")
    archive = trampolines.build(folder)

    def linked(name, more=""):
        source, library = folder / f"{name}.c", folder / f"{name}.so"
        source.write_text(SOURCE.format(more=more))
        # As at export: the archive is searched for what is called, and `weightstream_bind_v1` comes with it.
        command = ["c++", "-x", "c", "-shared", "-fPIC", str(source), "-x", "none", str(archive), "-o", str(library)]
        subprocess.run(command, check=True)
        return library

    return linked


def test_cuda_runtime_functions_are_bound_through_the_table(link):
    library = link("bound")
    assert trampolines.check_library(library) == []
    assert trampolines.is_bindable(library)
    names = {name for name, section in trampolines._dynamic_symbols(library) if section != 0}
    assert not any(name.startswith(("cuda", "aoti_")) for name in names), "nothing is exported"

    asked = []
    lookup_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)

    @lookup_type
    def lookup(name):
        asked.append(name.decode())

    bind = ctypes.CDLL(str(library)).weightstream_bind_v1
    bind.restype = ctypes.c_int64
    missing = ctypes.c_char_p()
    assert bind(lookup, ctypes.byref(missing)) == 3
    assert sorted(asked) == ["aoti_torch_create_cuda_stream_guard", "cudaGetErrorString", "cudaMalloc"]


@pytest.mark.parametrize("name", ["cudaStreamCreate", "__cudaRegisterFatBinary", "aoti_torch_no_such_function"])
def test_what_is_not_provided_is_named(link, name):
    library = link(name, f"int {name}(void); int other(void) {{ return {name}(); }}")
    assert trampolines.check_library(library) == [name]


def test_the_driver_is_left_to_the_dynamic_linker(link):
    library = link("driver", "int cuLaunchKernel(void); int launch(void) { return cuLaunchKernel(); }")
    assert trampolines.check_library(library) == []
