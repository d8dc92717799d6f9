"""Random small programs, as text: what `program_fuzz.py` exports and compares with eager PyTorch.

    seed -> layouts, dtypes, sizes -> statements, each tried at three sizes as it is drawn -> source of an nn.Module

A statement that eager PyTorch refuses at any size is dropped. So a program is right by construction, and whatever the export
makes of it is not. Two draws of one seed give the same program.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MAX_ELEMENTS, MAX_DIMS = 2000, 4
LAYOUTS = ["dense", "dense", "gaps", "steps", "transposed", "channels_last", "expanded", "offset"]
_INTEGERS = (torch.int64, torch.int32)


def laid_out(value: torch.Tensor, layout: str) -> torch.Tensor:
    """``value`` in another layout. Only equal rows can be ``expanded``."""
    if value.dim() == 0 or layout == "dense" or (layout == "expanded" and not torch.equal(value, value[:1].expand(value.shape))):
        return value.clone()
    if layout == "gaps":
        wide = torch.zeros(*value.shape[:-1], value.shape[-1] + 3, dtype=value.dtype)
        wide[..., : value.shape[-1]] = value
        return wide[..., : value.shape[-1]]
    if layout == "steps":
        return value.repeat_interleave(2, 0)[::2]
    if layout == "offset":
        return torch.cat([value[:1], value])[1:]
    if layout == "expanded":
        return value[:1].expand(value.shape)
    if layout == "channels_last" and value.dim() == 4:
        return value.to(memory_format=torch.channels_last)
    return value.transpose(0, -1).contiguous().transpose(0, -1)


@dataclasses.dataclass
class Input:
    """One input. Sizes are numbers, or expressions of ``n`` such as ``2*n``."""

    name: str
    sizes: list[str]
    dtype: torch.dtype
    layout: str

    def make(self, generator: torch.Generator, n: int, layout: str) -> torch.Tensor:
        shape = [eval(size, {"n": n}) for size in self.sizes]
        if self.dtype == torch.bool:
            value = torch.rand(shape, generator=generator) > 0.5
        elif self.dtype in _INTEGERS:
            value = torch.randint(0, 6, shape, generator=generator, dtype=self.dtype)
        else:
            value = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)
        if self.layout == "expanded" and shape:
            value = value[:1].expand(shape)
        return laid_out(value, layout)

    def dims(self) -> dict[int, str]:
        return {dim: size for dim, size in enumerate(self.sizes) if "n" in size}


@dataclasses.dataclass
class Program:
    """A module as a list of statements, and what it takes."""

    seed: int
    inputs: list[Input]
    setup: list[str]
    statements: list[str]
    outputs: list[str]
    smallest: int
    example: int
    largest: int
    #: How many of the inputs, the last ones, are keywords.
    named: int = 0

    @property
    def positional(self) -> int:
        return len(self.inputs) - self.named

    @property
    def tolerance(self) -> float:
        return 5e-2 if "bfloat16" in self.source() else 1e-4

    def source(self, name: str = "Program") -> str:
        lines = [f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in self.setup]
        names = [i.name for i in self.inputs]
        names.insert(self.positional, "*") if self.named else None
        lines += ["", f"    def forward(self, {', '.join(names)}):"]
        lines += [f"        {line}" for one in self.statements for line in one.splitlines()]
        return "\n".join([*lines, f"        return ({', '.join(self.outputs)},)", ""])

    def told(self) -> str:
        """The whole program for people: source, inputs and sizes."""
        takes = [f"#   {i.name}: {i.dtype} [{', '.join(i.sizes)}], {i.layout}" for i in self.inputs]
        sizes = [f"# n = {self.example}, dynamic from {self.smallest} to {self.largest}"] if self.dynamic else []
        head = ["import torch", "import torch.nn.functional as F", "from torch import nn", ""]
        return "\n".join([*head, f"# program {self.seed}", *takes, *sizes, self.source()])

    @property
    def dynamic(self) -> bool:
        return any(i.dims() for i in self.inputs)

    def module(self) -> nn.Module:
        space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
        exec(self.source(), space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return space["Program"]().eval().requires_grad_(False)

    def eager(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        keywords = {i.name: value for i, value in list(zip(self.inputs, inputs))[self.positional :]}
        return module(*inputs[: self.positional], **keywords)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return self.pass_inputs(0, self.example, own=True)

    def pass_inputs(self, number: int, n: int, own: bool = False) -> tuple[torch.Tensor, ...]:
        """Fresh inputs, in the layouts of the example or in any."""
        generator = torch.Generator().manual_seed(self.seed * 1000 + number)
        choose = random.Random(self.seed * 1000 + number)
        return tuple(i.make(generator, n, i.layout if own else choose.choice(LAYOUTS)) for i in self.inputs)


class Draw:
    """A program while it is drawn. ``spaces`` holds all values at the example's size, the least and the largest."""

    def __init__(self, seed: int):
        self.rng, self.seed = random.Random(seed), seed
        rng = self.rng
        self.float = rng.choices([torch.float32, torch.float64, torch.bfloat16], [10, 2, 1])[0]
        dynamic = rng.random() < 0.45
        smallest = rng.choice([0, 0, 1, 1, 1, 2])
        self.program = Program(seed, [], [], [], [], smallest, rng.choice([3, 4, 6]), rng.choice([7, 9]))
        for number in range(rng.randint(1, 3)):
            self.program.inputs.append(self._input(number, dynamic))
        # The symbol itself has to be some input's size.
        sizes = [size for i in self.program.inputs for size in i.sizes]
        if any("n" in size for size in sizes) and "n" not in sizes:
            self.program.inputs[0].sizes = ["n", *self.program.inputs[0].sizes[1:]] if self.program.inputs[0].sizes else ["n"]
        self.program.named = rng.choice([0, 0, 1, 2, 3]) % (len(self.program.inputs) + 1)
        self.names = [i.name for i in self.program.inputs]
        self.spaces = [self._space(n) for n in (self.program.example, self.program.smallest, self.program.largest)]
        for _ in range(rng.randint(0, 2)):
            self.buffer()

    def _input(self, number: int, dynamic: bool) -> Input:
        rng = self.rng
        sizes = [rng.choice(["1", "2", "3", "4", "4", "6"] * 6 + ["0"]) for _ in range(rng.choice([0, 1, 2, 2, 2, 3, 3, 4]))]
        if dynamic and sizes:
            sizes[rng.choice([0, 0, 0, len(sizes) - 1])] = rng.choice(["n", "n", "n", "n+1", "2*n"])
        dtype = rng.choices([self.float, torch.int64, torch.int32, torch.bool], [8, 2, 1, 1])[0]
        return Input(f"x{number}", sizes, dtype, rng.choice(LAYOUTS))

    def _space(self, n: int) -> dict[str, Any]:
        space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "self": nn.Module()}
        space.update(zip(self.names, self.program.pass_inputs(0, n, own=True)))
        space["_read_only"] = {space[name].untyped_storage().data_ptr() for name in self.names}
        return space

    # --- what is there

    def value(self, name: str) -> torch.Tensor:
        return eval(name, self.spaces[0])

    def some(self, want: Callable[[torch.Tensor], bool] = lambda value: True) -> str:
        """A value that is wanted, a late one rather than an early one. Raises :class:`IndexError` if there is none."""
        found = [name for name in self.names if want(self.value(name))]
        if self.rng.random() < 0.8:
            # Most operators take no complex numbers.
            found = [name for name in found if not self.value(name).is_complex()] or found
        return found[-1 - int(len(found) * self.rng.random() ** 1.5)]

    def is_static(self, name: str, dim: int) -> bool:
        return len({eval(name, space).shape[dim] for space in self.spaces}) == 1

    def some_dim(self, name: str, static: bool = False, least: int = 1) -> int:
        value = self.value(name)
        dims = [d for d in range(value.dim()) if value.shape[d] >= least and (not static or self.is_static(name, d))]
        return self.rng.choice(dims)

    # --- what is added

    def try_statement(self, text: str) -> bool:
        """Adds a statement if eager PyTorch takes it at all sizes and the result stays small."""
        new = re.findall(r"^(v\d+) =", text, re.MULTILINE)
        try:
            with torch.no_grad():
                for space in self.spaces:
                    exec(text, space)
                    assert all(self._is_small(space[name]) for name in new)
            assert len({(self.value(name).dim(), self.value(name).dtype) for name in new}) <= max(len(new), 1)
        except Exception:
            for space in self.spaces:
                for name in new:
                    space.pop(name, None)
            return False
        self.program.statements.append(text)
        self.names += new
        return True

    @staticmethod
    def _is_small(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.numel() <= MAX_ELEMENTS and value.dim() <= MAX_DIMS

    def fresh(self) -> str:
        return f"v{sum(name.startswith('v') for name in self.names)}"

    def add(self, line: str, name: str, read_only: bool) -> str:
        """Adds a line to ``__init__`` that makes ``self.name``."""
        self.program.setup.append(line)
        for space in self.spaces:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(self.seed)
                exec(line, space)
            if read_only:
                space["_read_only"].add(eval(name, space).untyped_storage().data_ptr())
        return name

    def weight(self, shape: list[int] | tuple[int, ...]) -> str:
        """A parameter: a new one, one that is there under its name, or under a second one."""
        same = [n for n in self.names if n.startswith("self.w") and self.value(n).shape == tuple(shape)]
        if same and self.rng.random() < 0.5:
            return self.rng.choice(same)
        name = f"self.w{sum(line.startswith('self.w') for line in self.program.setup)}"
        line = f"{name} = nn.Parameter(torch.randn({list(shape)}, dtype={self.float}) / 3)"
        if same:
            line = self.rng.choice([f"{name} = {same[0]}", f"{name} = [{same[0]}]"])
            name += "[0]" if line.endswith("]") else ""
        self.add(line, name, read_only=True)
        self.names.append(name)
        return name

    def buffer(self) -> str:
        rng, name = self.rng, f"b{sum('register_buffer' in line for line in self.program.setup)}"
        shape = rng.choice([[], [1], [1, 1], [3], [4, 3], [2, 4], [4, 4], [1, 6]])
        dtype = rng.choices([self.float, torch.int64, torch.int32, torch.bool], [6, 2, 1, 1])[0]
        value = rng.choice([f"torch.zeros({shape}, dtype={dtype})", f"torch.ones({shape}, dtype={dtype})"])
        if dtype == self.float and len(shape) == 2 and rng.random() < 0.3:
            value = f"torch.ones({shape[::-1]}, dtype={dtype}).t()"
        if len(shape) == 2 and rng.random() < 0.15:
            value = f"torch.zeros({[shape[0], shape[1] + 2]}, dtype={dtype})[:, :{shape[1]}]"
        extra = ", persistent=False" if rng.random() < 0.25 else ""
        self.add(f'self.register_buffer("{name}", {value}{extra})', f"self.{name}", read_only=False)
        self.names.append(f"self.{name}")
        return f"self.{name}"

    def written(self) -> str:
        """A value that may be written: no memory of an input or a weight."""
        return self.rng.choice([name for name in self.names if not any(self._is_read_only(name, space) for space in self.spaces)])

    @staticmethod
    def _is_read_only(name: str, space: dict[str, Any]) -> bool:
        return eval(name, space).untyped_storage().data_ptr() in space["_read_only"]


def draw(seed: int) -> Program:
    """The program of a seed."""
    from program_statements import STATEMENTS, outputs

    one = Draw(seed)
    rng = one.rng
    wanted = rng.randint(2, 9)
    kinds, weights = zip(*STATEMENTS)
    for _ in range(200):
        if len(one.program.statements) >= wanted:
            break
        try:
            one.try_statement(rng.choices(kinds, weights)[0](one))
        except (IndexError, ValueError):
            continue  # nothing there that it could take
    one.program.outputs = outputs(one)
    return one.program
