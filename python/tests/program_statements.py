"""The kinds of statements that `program_draw.py` draws from. Each gives the text of one; what eager PyTorch refuses is dropped."""

from __future__ import annotations

import torch
from program_draw import Draw


def is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def is_integer(value: torch.Tensor) -> bool:
    return value.dtype in (torch.int64, torch.int32)


def has_dims(least: int):
    return lambda value: value.dim() >= least


def like(one: Draw, name: str) -> str:
    """Another value of the same shape and dtype if there is one, or a changed copy."""
    value = one.value(name)
    same = [n for n in one.names if n != name and one.value(n).shape == value.shape and one.value(n).dtype == value.dtype]
    return one.rng.choice([*same, *([f"({name} * 2)"] if value.dtype != torch.bool else [f"~{name}"])])


def unary(one: Draw) -> str:
    a = one.some()
    forms = ["{a}.clone()", "{a} * 1", "{a} + 0", "{a}.contiguous()", "{a}.detach()", "{a}.to(torch.float32)", "{a} - 1", "{a} * 0.5"]
    if is_float(one.value(a)):
        forms += [
            "{a}.sin()",
            "{a}.tanh()",
            "torch.relu({a})",
            "F.silu({a})",
            "{a}.abs()",
            "-{a}",
            "{a}.clamp(-1, 1)",
            "{a}.to(torch.float64)",
        ]
        forms += ["{a} > 0.31", "{a} / 1", "{a} ** 1", "F.gelu({a})", "{a}.sigmoid()"] if one.value(a).dtype != torch.bfloat16 else []
    elif is_integer(one.value(a)):
        forms += ["{a} % 3", "{a} // 2", "{a} == 2", "{a} & 1", "{a}.to(torch.int32)", "{a}.bool()"]
    else:
        forms += ["~{a}", "{a} | False", "{a}.long()"]
    return f"{one.fresh()} = {one.rng.choice(forms).format(a=a)}"


def binary(one: Draw) -> str:
    a = one.some()
    b = like(one, a) if one.rng.random() < 0.4 else one.some()
    form = one.rng.choice(["{a} + {b}", "{a} - {b}", "{a} * {b}", "torch.maximum({a}, {b})", "torch.where({a} == {b}, {a}, {b})"])
    return f"{one.fresh()} = {form.format(a=a, b=b)}"


def choice(one: Draw) -> str:
    c = one.some(lambda value: value.dtype == torch.bool)
    a = one.some(lambda value: value.shape == one.value(c).shape)
    return f"{one.fresh()} = " + one.rng.choice(
        [f"torch.where({c}, {a}, {like(one, a)})", f"{a}.masked_fill({c}, 2)", f"{c}.any()", f"{c} & {c}"]
    )


def size(one: Draw) -> str:
    a = one.some(has_dims(1))
    d = one.some_dim(a)
    return f"{one.fresh()} = " + one.rng.choice(
        [f"{a} + {a}.shape[{d}]", f"torch.arange({a}.shape[{d}])", f"torch.zeros({a}.shape[{d}], 2) + 1"]
    )


def view(one: Draw) -> str:
    a = one.some(has_dims(1))
    value, rng = one.value(a), one.rng
    d, e = one.some_dim(a), one.some_dim(a)
    order = rng.sample(range(value.dim()), value.dim())
    forms = [
        f"{a}.reshape(-1)",
        f"{a}.permute({order})",
        f"{a}.transpose({d}, {e})",
        f"{a}.unsqueeze({rng.randint(0, value.dim())})",
        f"{a}.flip({d})",
        f"{a}.roll(1, {d})",
        f"{a}.unsqueeze(0).expand(3, *{a}.shape)",
        f"{a}.repeat_interleave(2, {d})",
        f"{a}.flatten()",
        f"{a}[..., None]",
        f"{a}.movedim({d}, {e})",
    ]
    if value.dim() > 1:
        forms += [f"{a}.reshape({a}.shape[0], -1)", f"{a}.flatten(0, 1)", f"{a}.diagonal(0, 0, 1)", f"{a}.transpose(0, 1).reshape(-1)"]
    return f"{one.fresh()} = {rng.choice(forms)}"


def part(one: Draw) -> str:
    """Slices, and what needs a size: of static dimensions mostly."""
    a, rng = one.some(has_dims(1)), one.rng
    d = one.some_dim(a, static=rng.random() < 0.8)
    length = one.value(a).shape[d]
    start = rng.randint(0, length - 1)
    colons = ":, " * d
    forms = [
        f"{a}.select({d}, {start})",
        f"{a}.select({d}, -1)",
        f"{a}[{colons}{start}:]",
        f"{a}[{colons}:{start + 1}]",
        f"{a}[{colons}::2]",
        f"{a}[{colons}1::2]",
        f"{a}.narrow({d}, {start}, 1)",
        f"{a}.chunk(2, {d})[0]",
        f"{a}.chunk(2, {d})[-1]",
        f"{a}.split(1, {d})[{start}]",
        f"{a}.squeeze({d})",
        f"{a}.unbind({d})[{start}]",
        f"{a}.unfold({d}, 2, 1)",
        f"F.pad({a}, (1, 1))",
        f"{a}.index_select({d}, torch.tensor([{start}, 0, {length - 1}]))",
    ]
    return f"{one.fresh()} = {rng.choice(forms)}"


def join(one: Draw) -> str:
    a, rng = one.some(has_dims(1)), one.rng
    d = one.some_dim(a)
    forms = [
        f"torch.cat([{a}, {like(one, a)}], {d})",
        f"torch.stack([{a}, {like(one, a)}], {d})",
        f"torch.cat([{a}, {a}.narrow({d}, 0, 1)], {d})",
    ]
    return f"{one.fresh()} = {rng.choice(forms)}"


def reduction(one: Draw) -> str:
    a, rng = one.some(has_dims(1)), one.rng
    d, keep = one.some_dim(a), rng.choice(["", ", keepdim=True"])
    forms = [f"{a}.sum({d}{keep})", f"{a}.amax({d}{keep})", f"{a}.amin({d}{keep})", f"{a}.sum()", f"{a}.cumsum({d})"]
    if is_float(one.value(a)) and one.float != torch.bfloat16:
        forms += [f"{a}.mean({d}{keep})", f"{a}.norm(dim={d}{keep})", f"{a}.softmax({d})", f"{a}.var({d}, correction=0{keep})"]
        forms += [f"{a}.logsumexp({d}{keep})", f"F.layer_norm({a}, {a}.shape[-1:])", f"F.normalize({a}, dim={d})", f"{a}.norm()"]
    if is_integer(one.value(a)):
        forms += [f"({a} == 2).any({d})", f"({a} != 1).all({d})"]
    return f"{one.fresh()} = {rng.choice(forms)}"


def product(one: Draw) -> str:
    """Products with weights, or of two values."""
    rng = one.rng
    a = one.some(lambda value: value.dtype == one.float and value.dim() >= 1)
    width = one.value(a).shape[-1]
    if not one.is_static(a, one.value(a).dim() - 1):
        return f"{one.fresh()} = {a}.unsqueeze(-1) @ {one.weight((1, 3))}"
    dims = one.value(a).dim()
    if dims in (3, 4) and rng.random() < 0.5 and one.is_static(a, 1) and one.float != torch.bfloat16:
        weight = one.weight((2, one.value(a).shape[1], *[rng.choice([1, 2])] * (dims - 2)))
        return f"{one.fresh()} = F.conv{dims - 2}d({a}, {weight}, padding={rng.choice([0, 1])}, stride={rng.choice([1, 1, 2])})"
    out = rng.choice([2, 4, width])
    forms = [
        lambda: f"F.linear({a}, {one.weight((out, width))})",
        lambda: f"F.linear({a}, {one.weight((out, width))}, {one.weight((out,))})",
        lambda: f"{a} @ {one.weight((out, width))}.t()",
        lambda: f"{a} @ {one.weight((width, out))}",
        lambda: f"{a} * {one.weight((width,))}",
        lambda: f"{a} + {one.weight((1,))}",
        lambda: f"{a}.unsqueeze(-1) @ {a}.unsqueeze(-2)",
    ]
    return f"{one.fresh()} = {rng.choice(forms)()}"


def lookup(one: Draw) -> str:
    i = one.some(is_integer)
    w = one.weight((5, 3))
    return f"{one.fresh()} = " + one.rng.choice(
        [f"F.embedding({i} % 5, {w})", f"{w}[{i} % 5]", f"{w}.index_select(0, ({i} % 5).reshape(-1))"]
    )


def update(one: Draw) -> str:
    """A changed copy, whose source may be a part of its target."""
    a, rng = one.some(has_dims(1)), one.rng
    d = one.some_dim(a, static=True, least=2)
    n = one.value(a).shape[d]
    two = f"torch.tensor({rng.sample(range(n), 2)})"
    source = rng.choice([a, like(one, a)])
    forms = [
        f"{a}.index_copy({d}, {two}, {source}.narrow({d}, 0, 2))",
        f"{a}.index_add({d}, {two}, {source}.narrow({d}, {n - 2}, 2))",
        f"torch.slice_scatter({a}, {source}.narrow({d}, {n - 2}, 2), {d}, 0, 2)",
        f"torch.select_scatter({a}, {source}.select({d}, {n - 1}), {d}, 0)",
        f"{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64).narrow({d}, 0, 1) + {n - 1}, {source})",
        f"{a}.scatter_add({d}, torch.zeros_like({a}, dtype=torch.int64), {source})",
        f"{a}.index_fill({d}, {two}, 1)",
    ]
    if d == 0:
        forms += [f"{a}.index_put(({two},), {source}[:2])", f"{a}.index_put(({two},), {source}[-2:], accumulate=True)"]
    return f"{one.fresh()} = {rng.choice(forms)}"


def write(one: Draw) -> str:
    """A write in place: to a buffer, a view of one, or to a value of the program's own."""
    rng = one.rng
    t = one.written() if rng.random() < 0.4 else rng.choice([name for name in one.names if name.startswith("self.b")])
    value = one.value(t)
    same = rng.choice([name for name in one.names if one.value(name).dtype == value.dtype])
    same = rng.choice([same, like(one, t), f"{t}.flip(0)" if value.dim() else t])
    forms = [
        f"{t}.copy_({same})",
        f"{t}.copy_({same})",
        f"{t}.fill_(1)",
        f"{t}.zero_()",
        f"{t}.logical_not_()",
        f"{t}.view(-1)[0] = 1",
        f"{t}[...] = {same}",
    ]
    if value.dtype != torch.bool:
        forms += [
            f"{t}.add_(1)",
            f"{t} += 1",
            f"{t}.add_({same})",
            f"{t}.mul_(0.5)",
            f"{t}.sub_({same})",
            f"{t}.clamp_(-3, 3)",
            f"{t}.mul_(-1)",
        ]
    if value.dim():
        n = value.shape[0]
        if one.is_static(t, 0):
            forms += [f"{t}[{n - 1}] = {same}", f"{t}[{n - 1}] = {t}[0]", f"{t}[0] += 1", f"{t}.index_fill_(0, torch.tensor([{n - 1}]), 1)"]
            integers = [name for name in one.names if is_integer(one.value(name)) and one.value(name).numel() == 1]
            if integers:
                i = rng.choice(integers)
                forms += [f"{t}[{i}.reshape(1).long() % {n}] = 1", f"{t}.index_copy_(0, {i}.reshape(1).long() % {n}, {t}[:1] + 1)"] * 3
        forms += [
            f"{t}[1:] = {t}[:-1]",
            f"{t}[:-1] = {t}[1:].clone()",
            f"{t}[:1] = {same}",
            f"{t}.copy_({t}.roll(1, 0))",
            f"{t}[::2] = {same}[::2]",
        ]
    others = [name for name in one.names if name.startswith("self.b") and name != t and one.value(name).shape == value.shape]
    forms += [f"{t}.copy_({same})\n{name}.copy_({same})" for name in others]
    text = rng.choice(forms)
    # An augmented assignment to a bare name would make a local of it.
    return text if not text.startswith("v") or " += " not in text else f"{t}.add_(1)"


def swap(one: Draw) -> str:
    a, b = one.rng.sample([name for name in one.names if name.startswith("self.b")], 2)
    t = one.fresh()
    return f"{t} = {a}{one.rng.choice(['.clone()', ' * 1', ' + 0'])}\n{a}.copy_({b})\n{b}.copy_({t})"


def old_state(one: Draw) -> str:
    """A read before a write."""
    b = one.rng.choice([name for name in one.names if name.startswith("self.b")])
    form = one.rng.choice(
        [
            "{b}.clone()",
            "{b} * 1",
            "{b} + 0",
            "{b}.reshape(-1) * 1",
            "{b}.unsqueeze(0).clone()",
            "{b}.contiguous()",
            "{b}.view(-1)",
            "{b}.to({b}.dtype, copy=True)",
        ]
    )
    return f"{one.fresh()} = {form.format(b=b)}\n{write(one)}"


def complex_from_real(one: Draw) -> str:
    rng = one.rng
    a = one.some(lambda value: value.dtype in (torch.float32, torch.float64) and value.dim() >= 1)
    forms = [
        f"torch.complex({a}, {like(one, a)})",
        f"torch.polar({a}.abs(), {like(one, a)})",
        f"torch.fft.rfft({a})",
        f"torch.fft.fft({a})",
    ]
    if one.value(a).shape[-1] == 2:
        forms += [f"torch.view_as_complex({a}.contiguous())"] * 3
    return f"{one.fresh()} = {rng.choice(forms)}"


def complex_numbers(one: Draw) -> str:
    """What is computed with complex numbers, and how they become real again."""
    rng = one.rng
    a = rng.choice([name for name in one.names if one.value(name).is_complex()])
    b, d = like(one, a), rng.randrange(max(one.value(a).dim(), 1))
    forms = ["{a}.abs()", "{a}.real", "{a}.imag", "torch.view_as_real({a})", "{a}.conj()", "{a} * {b}", "{a} + {b}", "{a} - {b}", "-{a}"]
    forms += ["{a} * 0.5", "{a} * 1j", "{a} / ({b}.abs() + 1)", "{a}.conj() * {b}", "torch.exp({a} * 0.1)", "torch.exp(1j * {a}.real)"]
    forms += ["{a}.reshape(-1)", "{a}.unsqueeze(0)", "{a}.clone()", "{a}.sum()"]
    if one.value(a).dim():
        forms += ["{a}.sum({d})", "{a}.mean({d})", "{a}.flip({d})", "{a}.transpose(0, {d})", "torch.cat([{a}, {b}], {d})", "{a}[..., :1]"]
        forms += ["torch.stack([{a}, {b}], {d})", "torch.fft.ifft({a}, dim={d})", "torch.fft.irfft({a})", "{a}.select({d}, 0)"]
        forms += ["torch.where({a}.real > 0, {a}, {b})", "{a}.roll(1, {d})", "{a}.cumsum({d})"]
    return f"{one.fresh()} = {rng.choice(forms).format(a=a, b=b, d=d)}"


STATEMENTS = [
    (unary, 5),
    (binary, 5),
    (choice, 1),
    (size, 1),
    (view, 6),
    (part, 5),
    (join, 2),
    (reduction, 3),
    (product, 4),
    (lookup, 2),
    (update, 3),
    (write, 4),
    (swap, 1),
    (old_state, 2),
    (complex_from_real, 2),
    (complex_numbers, 4),
]


def outputs(one: Draw) -> list[str]:
    """What the program returns: its last values, state, and results that are one memory."""
    rng = one.rng
    found = [name for name in one.names if name.startswith("v")][-3:] or [f"{one.names[0]} * 2"]
    extra = rng.random()
    last = found[-1]
    if extra < 0.5:
        weights = [name for name in one.names if name.startswith("self.")]
        wide = (
            [f"{last}.reshape(-1)", f"{last}[..., :1]", f"{last}.transpose(0, -1)"] if last in one.names and one.value(last).dim() else []
        )
        found.append(
            rng.choice(
                [f"{last} * 1", last, f"{last}.unsqueeze(0)", one.names[0], *weights[-2:], *[f"{w} * 1" for w in weights[-2:]], *wide]
            )
        )
    found += [name for name in one.names if name.startswith("self.b") and rng.random() < 0.4 and name not in found]
    # No caller takes complex numbers.
    return [f"torch.view_as_real({text})" if one.value(text).is_complex() else text for text in found]
