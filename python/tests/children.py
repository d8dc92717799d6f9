"""What tests run in a process of its own, so that a crash is a failure and memory can be measured from the start.

`python children.py FUNCTION '["argument", ...]'` calls the function and prints what it returns as JSON, last line.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

MARGIN_KIB = 64 * 1024


def say_nothing() -> None:
    """Errors are expected by the hundred; their logs are not."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def load_damaged(pte: str, ptd: str, which: str, folder: str) -> dict:
    """Damages one byte after the other of headers and tables, loads and runs."""
    import weightstream as ws
    from device_under_test import ON_GPU
    from exports import Files
    from models import ZOO
    from support import open_module, run_passes
    from zoo import bits

    say_nothing()
    passes = ZOO["mlp"].passes(1)
    good = Path(pte if which == "pte" else ptd).read_bytes()
    expected = bits(run_passes(open_module(Files("good", Path(pte), Path(ptd))), passes)[0])
    # where the tables end: the program's size, or the offset of the first segment
    end = int.from_bytes(good[16:24] if which == "pte" else good[32:40], "little")
    # A load takes longer on a GPU; the same code reads the files.
    tries = 60 if ON_GPU else 400
    places = sorted({*range(min(64, end)), *range(64, end, max(1, end // tries))})
    counts = {"tried": len(places), "refused": 0, "harmless": 0, "wrong": []}
    broken = Path(folder) / f"damaged.{which}"
    for place in places:
        broken.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
        files = Files("damaged", broken if which == "pte" else Path(pte), broken if which == "ptd" else Path(ptd))
        try:
            found = bits(run_passes(open_module(files), passes)[0])
        except ws.Error:
            counts["refused"] += 1
        else:
            if found == expected:
                counts["harmless"] += 1
            else:
                counts["wrong"].append(place)
    return counts


class Watch:
    """The most memory that no file holds since the start of the block, sampled every millisecond."""

    def __enter__(self) -> Watch:
        from support import held_kib

        self.read, self.highest, self.stop = held_kib, 0, threading.Event()
        self.before = self.read()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self) -> None:
        while not self.stop.wait(0.001):
            self.highest = max(self.highest, self.read())

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.grown_kib = max(self.highest, self.read()) - self.before


def memory_growth(pte: str, ptd: str, name: str, budget: str) -> dict:
    """How far the memory grows that no file holds, while a model is loaded and run at a budget."""
    import torch
    import weightstream as ws
    from exports import Files
    from models import ZOO
    from support import open_module, run_passes
    from zoo import largest_error

    torch.set_num_threads(1)
    spec = ZOO[name]
    passes = spec.passes(3)
    expected = spec.eager(passes)
    gc.collect()
    ws.required_budget(pte, method="forward")
    with Watch() as watch:
        module = open_module(Files(name, Path(pte), Path(ptd)), int(budget))
        found = run_passes(module, passes)
    error = max(largest_error(a, b) for a, b in zip(found, expected, strict=True))
    return {"grown_kib": watch.grown_kib, "error": error, "peak_bytes": module.stats()["peak_bytes"]}


def load_a_hundred_times(pte: str, ptd: str) -> dict:
    """Memory that no file holds, open files and mappings after 10 and after 110 loads."""
    from exports import Files
    from models import ZOO
    from support import held_kib, open_descriptors, open_module, run_passes

    passes = ZOO["mlp"].passes(1)
    files = Files("mlp", Path(pte), Path(ptd))

    def rounds(count: int) -> dict:
        for _ in range(count):
            module = open_module(files)
            run_passes(module, passes)
            del module
        gc.collect()
        maps = len(Path("/proc/self/maps").read_text().splitlines())
        threads = len(os.listdir("/proc/self/task"))
        return {"held_kib": held_kib(), "files": open_descriptors(), "maps": maps, "threads": threads}

    return {"early": rounds(10), "late": rounds(100)}


def forked(pte: str, ptd: str, how: str) -> dict:
    """What a child sees of a module that this process has loaded, of its end, and of a load of its own; and that this process goes on.
    The module is executing, as far as the child can see: its turn is another thread's."""
    import multiprocessing

    from exports import Files
    from models import ZOO
    from support import open_module, run_passes
    from zoo import bits

    files, passes = Files("mlp", Path(pte), Path(ptd)), ZOO["mlp"].passes(1)
    modules = [open_module(files), open_module(files)]
    expected = bits(run_passes(modules[0], passes)[0])
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        there.send(seen_in_child(modules, files, passes, expected))

    modules[0]._turn.acquire()
    if how == "multiprocessing":
        process = context.Process(target=child)
        process.start()
        process.join(60)
        code = process.exitcode
    elif (pid := os.fork()) == 0:
        child()
        sys.exit(0)  # collects what is left, as every program does at its end
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    modules[0]._turn.release()
    seen = here.recv() if here.poll() else {}
    return {**seen, "code": code, "parent": os.getpid(), "goes_on": bits(run_passes(modules[0], passes)[0]) == expected}


def seen_in_child(modules: list, files: Any, passes: Any, expected: Any) -> dict:
    import weightstream as ws
    from device_under_test import ON_GPU
    from support import open_module, run_passes
    from zoo import bits

    signal.alarm(60)  # ends a child that hangs
    messages = []
    for call in (lambda: modules[0].forward(*passes[0]), lambda: modules[0].stats()):
        try:
            call()
        except ws.Error as error:
            messages.append(str(error))
    try:
        own = bits(run_passes(open_module(files), passes)[0]) == expected
    except ws.Error as error:
        own = str(error)
    modules[0].close()
    modules.clear()  # the other one is collected
    gc.collect()
    return {"messages": messages, "own": own, "child": os.getpid(), "gpu": ON_GPU}


def with_torch(order: str, pte: str, ptd: str) -> dict:
    """Runs the perceptron with torch imported before, after, or with global symbols; says how far off it is."""
    flags = sys.getdlopenflags()
    if order == "global":
        sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    if order != "after":
        importlib.import_module("torch")
    sys.setdlopenflags(flags)
    import weightstream as ws

    module = ws.Module(pte, ptd)
    loaded_first = "torch" not in sys.modules
    from models import ZOO
    from support import run_passes
    from zoo import largest_error

    spec = ZOO["mlp"]
    passes = spec.passes(4)
    found = run_passes(module, passes)
    error = max(largest_error(a, b) for a, b in zip(found, spec.eager(passes), strict=True))
    return {"error": error, "module_before_torch": loaded_first}


def torch_package_alone(package: str) -> dict:
    """Torch's own ahead-of-time package, without anything of ours in the process."""
    import torch

    torch._inductor.aoti_load_package(package)
    return {}


def beside_torch_package(package: str, pte: str, ptd: str, first: str) -> dict:
    """Our module and torch's own ahead-of-time package of the same model, in turn, in one process."""
    import torch
    import weightstream as ws
    from device_under_test import DEVICE
    from models import ZOO
    from support import run_passes
    from zoo import as_list, largest_error

    def ours():
        return ws.Module(pte, ptd)

    def theirs():
        return torch._inductor.aoti_load_package(package)

    spec = ZOO["mlp"]
    passes = spec.passes(4)
    expected = spec.eager(passes)
    if first == "ours":
        module, compiled = ours(), theirs()
    else:
        compiled, module = theirs(), ours()
    worst = {"ours": 0.0, "theirs": 0.0}
    for inputs, wanted in zip(passes * 3, expected * 3, strict=True):
        worst["ours"] = max(worst["ours"], largest_error(run_passes(module, [inputs])[0], wanted))
        outputs = [out.cpu() for out in as_list(compiled(*(x.to(DEVICE) for x in inputs)))]
        worst["theirs"] = max(worst["theirs"], largest_error(outputs, wanted))
    return worst


if __name__ == "__main__":
    result = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    print(json.dumps(result), flush=True)
