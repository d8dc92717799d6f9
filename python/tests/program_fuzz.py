"""Random small programs, exported and compared with eager PyTorch at two budgets.

    python program_fuzz.py --seed 1 --programs 150     150 programs from seed 1 on; exit status 1 if one is wrong
    python program_fuzz.py --show 17                   the source of program 17
    python program_fuzz.py --only 17 23                these programs, each in an export of its own
    python program_fuzz.py --reduce 17                 the fewest statements with which program 17 is still wrong

An export costs seconds whatever its size, so several programs share one. If that fails or differs, it is taken apart.

- right: all passes equal eager PyTorch, integers exactly, and both budgets agree bit for bit;
- not exportable: `torch.export.export` refuses it;
- refused: the export side refuses it by an :class:`ExportError`;
- wrong: anything else, a crash and a refusal at load or in a pass too.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import weightstream as ws
from executorch.exir import to_edge_transform_and_lower
from program_draw import Program, draw
from torch import nn
from torch.export import Dim

RIGHT, REFUSED, NOT_EXPORTABLE, WRONG = "right", "refused", "not exportable", "wrong"
EVERYTHING = 1 << 30
#: Seconds that the passes of one export may take.
PATIENCE = 120


@dataclasses.dataclass
class Verdict:
    """What became of one program."""

    program: Program
    kind: str
    text: str = ""


class Batch(nn.Module):
    """Programs side by side: each has its own inputs and outputs. A weight lets every batch have a budget."""

    def __init__(self, programs: list[Program]):
        super().__init__()
        self.parts = nn.ModuleList(program.module() for program in programs)
        self.counts = [program.positional for program in programs]
        self.names = [[one.name for one in program.inputs[program.positional :]] for program in programs]
        self.weight = nn.Parameter(torch.ones(16, 16))

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, found = list(inputs), []
        for number, (part, count, names) in enumerate(zip(self.parts, self.counts, self.names)):
            found += part(*left[:count], **{name: named[f"p{number}_{name}"] for name in names})
            left = left[count:]
        return (*found, self.weight.sum())


def arguments(programs: list[Program], values: Iterable[Iterable[Any]], order: int) -> tuple[list[Any], dict[str, Any]]:
    """What a batch is called with, of one value for each input of each program; its keywords are in an order of the caller's."""
    inputs: list[Any] = []
    named: list[tuple[str, Any]] = []
    for number, (program, own) in enumerate(zip(programs, values)):
        for place, (one, value) in enumerate(zip(program.inputs, own)):
            named.append((f"p{number}_{one.name}", value)) if place >= program.positional else inputs.append(value)
    random.Random(order).shuffle(named)
    return inputs, dict(named)


def exported(programs: list[Program]) -> torch.export.ExportedProgram:
    shapes = []
    for number, program in enumerate(programs):
        n = Dim(f"n{number}", min=program.smallest, max=program.largest)
        shapes.append([{dim: eval(size, {"n": n}) for dim, size in one.dims().items()} for one in program.inputs])
    inputs, named = arguments(programs, [program.example_inputs() for program in programs], programs[0].seed)
    of_inputs, of_named = arguments(programs, shapes, programs[0].seed)
    dynamic = {key: value for key, value in (("inputs", tuple(of_inputs)), ("named", of_named)) if value}
    with torch.no_grad():
        return torch.export.export(Batch(programs), tuple(inputs), kwargs=named, dynamic_shapes=dynamic)


def lower(programs: list[Program], folder: Path) -> None:
    program = exported(programs)
    with torch.no_grad():
        edge = to_edge_transform_and_lower(program, partitioner=[ws.WeightStreamPartitioner()], compile_config=ws.edge_compile_config())
        ws.save(edge, folder / "model.pte", folder / "model.ptd")


def passes(program: Program) -> Iterator[tuple[int, int]]:
    """Number and size of each pass: state grows over them, and the sizes are the example's, the ends and one between."""
    sizes = [program.example, program.smallest, program.largest, (program.smallest + program.largest) // 2, program.example]
    return enumerate(sizes, 1)


def expected(program: Program) -> list[list[torch.Tensor]]:
    """Eager PyTorch, with inputs in the layouts that were exported: what is a view there may be a copy in another layout."""
    module, found = program.module(), []
    with torch.no_grad():
        for number, n in passes(program):
            found.append([value.clone() for value in program.eager(module, program.pass_inputs(number, n, own=True))])
    return found


def run(programs: list[Program], folder: str, pipe: Any) -> None:
    """In a child: sends the text of what is wrong for each program, empty where nothing is."""
    torch.set_num_threads(1)
    pte, ptd = f"{folder}/model.pte", f"{folder}/model.ptd"
    try:
        outputs = []
        for budget in (ws.required_budget(pte), EVERYTHING):
            with ws.Module(pte, ptd, weight_offload_budget_bytes=str(budget)) as module:
                rounds = zip(*[[program.pass_inputs(*one) for one in passes(program)] for program in programs])
                calls = [arguments(programs, one, order) for order, one in enumerate(rounds)]
                outputs.append([module(*inputs, **named) for inputs, named in calls])
        wanted = [expected(program) for program in programs]
        places, start = [], 0
        for one in wanted:
            places.append(slice(start, start + len(one[0])))
            start += len(one[0])
        pipe.send(
            [
                differences(p, w, [o[place] for o in outputs[0]], [o[place] for o in outputs[1]])
                for p, w, place in zip(programs, wanted, places)
            ]
        )
    except ws.Error as problem:
        pipe.send(f"it exports, and cannot be called: {problem}")
    except BaseException:
        pipe.send(traceback.format_exc())


def differences(program: Program, wanted: list[Any], least: list[Any], most: list[Any]) -> str:
    texts = []
    for number, n in passes(program):
        for place, (want, a, b) in enumerate(zip(wanted[number - 1], least[number - 1], most[number - 1])):
            told = f"pass {number} (n = {n}), output {place} ({program.outputs[place]}): "
            if a.shape != want.shape or a.dtype != want.dtype:
                texts.append(f"{told}{a.dtype} {list(a.shape)}, eager has {want.dtype} {list(want.shape)}")
            elif not is_close(a, want, program.tolerance):
                texts.append(f"{told}{brief(a)}, eager has {brief(want)}")
            elif not same_bits(a, b):
                texts.append(f"{told}the two budgets differ: {brief(a)} and {brief(b)}")
    return "\n".join(texts[:6])


def brief(value: torch.Tensor) -> str:
    numbers = [f"{number:.5g}" if isinstance(number, float) else str(number) for number in value.reshape(-1)[:32].tolist()]
    return f"[{', '.join(numbers)}]"


def is_close(found: torch.Tensor, want: torch.Tensor, tolerance: float) -> bool:
    if not want.is_floating_point():
        return torch.equal(found, want)
    return torch.allclose(found.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def in_a_child(programs: list[Program], folder: str) -> Any:
    """What :func:`run` sends: a list, or the text of what stopped it. The child's crash is a text too."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=run, args=(programs, folder, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(PATIENCE) else f"no answer after {PATIENCE} s"
    except EOFError:
        child.join()
        return f"the process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()


def judge(programs: list[Program]) -> list[Verdict]:
    """The verdicts of programs that share an export, where each of them can be exported."""
    verdicts, left = [], []
    for program in programs:
        early = alone(program)
        verdicts += [early] if early else []
        left += [] if early else [program]
    return verdicts + (together(left) if left else [])


def alone(program: Program) -> Verdict | None:
    """The verdict of a program that does not get as far as the compiler: cheap, and spares a shared export."""
    try:
        one = exported([program])
    except Exception as problem:
        return Verdict(program, NOT_EXPORTABLE, f"{type(problem).__name__}: {problem}")
    try:
        ws.WeightStreamPartitioner().transform_for_pre_decomposition(one)
    except ws.ExportError as problem:
        return Verdict(program, REFUSED, str(problem))
    except Exception:
        return Verdict(program, WRONG, traceback.format_exc())
    return None


def together(programs: list[Program]) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="program-fuzz-") as folder:
        try:
            lower(programs, Path(folder))
        except Exception as problem:
            kind = REFUSED if isinstance(problem, ws.ExportError) else WRONG
            return apart(programs, Verdict(programs[0], kind, str(problem) if kind == REFUSED else traceback.format_exc()))
        found = in_a_child(programs, folder)
    if isinstance(found, str):
        return apart(programs, Verdict(programs[0], WRONG, found))
    return [Verdict(program, WRONG if text else RIGHT, text) for program, text in zip(programs, found)]


def apart(programs: list[Program], verdict: Verdict) -> list[Verdict]:
    """Both halves of what failed as a whole; the verdict if that is one program."""
    if len(programs) == 1:
        return [verdict]
    half = len(programs) // 2
    found = together(programs[:half]) + together(programs[half:])
    if all(one.kind == RIGHT for one in found):
        found[0] = Verdict(programs[0], WRONG, f"only in one export with {[p.seed for p in programs[1:]]}: {verdict.text}")
    return found


def reduced(program: Program) -> Verdict:
    """The program without outputs and statements that its fault does not need."""
    best = together([program])[0]
    while best.kind == WRONG:
        candidates = [one for one in smaller(best.program) if alone(one) is None]
        # A fault of values is looked for in all of them at once; a failing export tells of one only.
        groups = [candidates] if best.text.startswith("pass ") else [[one] for one in candidates]
        found = next((v for group in groups if group for v in together(group) if v.kind == WRONG and v.text[:12] == best.text[:12]), None)
        if found is None:
            break
        best = found
    return best


def smaller(program: Program) -> list[Program]:
    """Programs with an output or a statement less that eager PyTorch takes."""
    found = []
    for part in ("outputs", "statements", "setup"):
        for place in range(len(getattr(program, part))):
            one = copy.deepcopy(program)
            del getattr(one, part)[place]
            try:
                assert one.outputs
                expected(one)
            except Exception:
                continue
            found.append(one)
    return found


def fuzz(seeds: Iterable[int], size: int, seconds: float = float("inf")) -> list[Verdict]:
    """The verdicts of these programs, ``size`` of them in each export. Starts no export after ``seconds``."""
    begin, left = time.monotonic(), iter(seeds)
    verdicts: list[Verdict] = []
    while time.monotonic() - begin < seconds and (programs := [draw(seed) for seed in itertools.islice(left, size)]):
        new = judge(programs)
        verdicts += new
        for one in new:
            if one.kind == WRONG:
                print(f"--- program {one.program.seed} is wrong:\n{one.text}\n{one.program.told()}", flush=True)
        print(f"{summary(verdicts)}  ({time.monotonic() - begin:.0f} s)", flush=True)
    return verdicts


def summary(verdicts: list[Verdict]) -> str:
    counts = Counter(one.kind for one in verdicts)
    return f"{len(verdicts)} programs: " + ", ".join(f"{counts[kind]} {kind}" for kind in (RIGHT, REFUSED, NOT_EXPORTABLE, WRONG))


def reasons(verdicts: list[Verdict], kind: str) -> str:
    """How often what was refused, by the first line without its names and numbers."""
    counts = Counter(re.sub(r"\(node '[^']*'\)|'[^']*'|\d+", "..", one.text.split("\n")[0])[:160] for one in verdicts if one.kind == kind)
    return "\n".join(f"  {count:3} {kind}: {text}" for text, count in counts.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first program")
    parser.add_argument("--programs", type=int, default=150)
    parser.add_argument("--together", type=int, default=16, help="programs in one export")
    parser.add_argument("--seconds", type=float, help="as many programs as there is time for, instead of a number")
    parser.add_argument("--only", type=int, nargs="+", help="these programs, each in an export of its own")
    parser.add_argument("--show", type=int, help="print this program")
    parser.add_argument("--reduce", type=int, help="print the smallest part of this program that is wrong")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("WEIGHTSTREAM_PROGRESS", "0")
    torch.set_num_threads(1)
    if given.show is not None:
        print(draw(given.show).told())
        return 0
    if given.reduce is not None:
        least = reduced(draw(given.reduce))
        print(f"{least.kind}: {least.text}\n{least.program.told()}")
        return int(least.kind == WRONG)
    count = 1 << 30 if given.seconds else given.programs
    seeds = given.only or range(given.seed, given.seed + count)
    verdicts = fuzz(seeds, 1 if given.only else given.together, given.seconds or float("inf"))
    print(reasons(verdicts, REFUSED), reasons(verdicts, NOT_EXPORTABLE), sep="\n")
    print(summary(verdicts))
    return int(any(one.kind == WRONG for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
