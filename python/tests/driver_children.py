"""What the tests of the driver run in a process of its own: `python driver_children.py FUNCTION '["argument", ...]'`, as children.py."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path


def run_plain(pte: str, ptd: str, shape: str, input_path: str, passes: int) -> tuple[str, list[str]]:
    """Runs a program of one float32 input through the C functions alone; the output's bytes, and what was mapped meanwhile."""
    from weightstream._native import bindings

    library = bindings.library()
    sizes, data = json.loads(shape), Path(input_path).read_bytes()
    handle = ctypes.c_void_p(library.wsm_open(pte.encode(), ptd.encode(), None, 0))
    assert handle, library.ws_last_error()
    assert library.wsm_load_method(handle, b"forward") == 0, library.ws_last_error()
    memory = ctypes.create_string_buffer(data, len(data))
    dims = (ctypes.c_int64 * len(sizes))(*sizes)
    view = bindings.Tensor(ctypes.cast(memory, ctypes.c_void_p), len(data), 6, len(sizes), dims, None)
    given = bindings.Value(kind=bindings.TENSOR, tensor=view)
    for _ in range(passes):
        assert library.wsm_execute(handle, b"forward", ctypes.byref(given), 1) == 0, library.ws_last_error()
    out = bindings.Value()
    assert library.wsm_output(handle, 0, ctypes.byref(out)) == 0
    found, mapped = ctypes.string_at(out.tensor.data, out.tensor.nbytes).hex(), mapped_libraries()
    library.wsm_close(handle)
    return found, mapped


def refused(pte: str, ptd: str, specs: str, good_pte: str, good_ptd: str, shape: str, input_path: str) -> dict:
    """Loads a program twice, which must be refused both times, and then runs another one: the process goes on."""
    import weightstream as ws

    messages = []
    for _ in range(2):
        try:
            ws.Module(pte, ptd, **json.loads(specs)).close()
        except ws.Error as error:
            messages.append(str(error))
    return {"messages": messages, "output": run_plain(good_pte, good_ptd, shape, input_path, 2)[0]}


def forked(pte: str, ptd: str, good_pte: str, good_ptd: str, shape: str, input_path: str) -> dict:
    """Loads a program for a GPU, which is refused, here and then in a child, which then runs another one."""
    import weightstream as ws

    def refusal() -> str:
        try:
            ws.Module(pte, ptd).close()
        except ws.Error as error:
            return str(error)
        return ""

    parent_message, (here, there) = refusal(), os.pipe()
    if (pid := os.fork()) == 0:
        seen = {"message": refusal(), "child": os.getpid(), "output": run_plain(good_pte, good_ptd, shape, input_path, 1)[0]}
        os.write(there, json.dumps(seen).encode())
        os._exit(0)
    os.close(there)
    with open(here) as pipe:
        seen = json.loads(pipe.read() or "{}")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {**seen, "code": code, "parent": os.getpid(), "parent_message": parent_message}


def mapped_libraries() -> list[str]:
    """File names of what this process has mapped."""
    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(Path(path).name for path in paths)


def without_torch(pte: str, ptd: str, shape: str, input_path: str) -> dict:
    """Runs a program; says which libraries of others were needed, and gives the output."""
    output, mapped = run_plain(pte, ptd, shape, input_path, 3)
    pattern = re.compile(r"lib(cuda|cudart|torch|c10|nvrtc|cublas|aoti)")
    return {"output": output, "libraries": [name for name in mapped if pattern.match(name)], "torch": "torch" in sys.modules}


if __name__ == "__main__":
    result = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    print(json.dumps(result), flush=True)
