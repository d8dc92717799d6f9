"""Programs of several methods that run: equal to eager PyTorch in every order of calls, one store, one budget, one state."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
import weightstream as ws
from device_under_test import DEVICE
from methods_models import METHODS
from methods_support import weight_entries
from support import error_of, held_kib, open_module
from zoo import as_list, bits, largest_error

NAMES = sorted(METHODS)


def least(files) -> int:
    return ws.required_budget(str(files.pte))


def everything(files) -> int:
    """More than all constants occupy."""
    return 2 * sum(map(len, weight_entries(files.ptd).values()))


def limit_of(files, budget) -> int:
    if budget == "floor":
        return least(files)
    return max(least(files), everything(files) * int(budget) // 200)


def play(module, calls) -> list[list[torch.Tensor]]:
    return [[out.clone() for out in as_list(module.execute(name, *inputs))] for name, inputs in calls]


@pytest.mark.parametrize("policy", ["lru", "planned"])
@pytest.mark.parametrize("budget", ["floor", 50, 200])
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_eager_over_alternating_passes(name, budget, policy, exported):
    spec, files = METHODS[name], exported(name)
    calls, limit = spec.passes(20), limit_of(files, budget)
    expected = spec.eager(calls)
    with open_module(files, limit, weight_offload_policy=policy) as module:
        assert module.methods == tuple(sorted({method for method, _ in calls}))
        for number, (call, found) in enumerate(zip(calls, play(module, calls))):
            error = largest_error(found, expected[number])
            assert error <= spec.tolerance, f"call {number}, '{call[0]}': off by {error}"
        stats = module.stats()
    assert stats["peak_bytes"] <= stats["budget_bytes"] == limit
    assert stats["passes"] == len(calls)


@pytest.mark.parametrize("name", NAMES)
def test_every_order_of_first_calls(name, exported):
    """Whatever is called first, and however often in a row: the same bits as with everything resident."""
    spec, files = METHODS[name], exported(name)
    examples = dict(reversed(spec.passes()))
    for order in itertools.permutations(examples):
        calls = [(method, examples[method]) for method in (*order, *reversed(order), order[0], order[0])]
        resident = [bits(found) for found in play(open_module(files, 200 * everything(files)), calls)]
        with open_module(files, least(files)) as module:
            assert [bits(found) for found in play(module, calls)] == resident, order


def test_methods_are_attributes(exported):
    spec, files = METHODS["methods_decoder"], exported("methods_decoder")
    ((_, prompt), (_, token), *_) = spec.passes()
    with open_module(files) as module:
        first = module.prefill(*prompt)
        module.decode(*token)
        assert bits([module.prefill(*prompt)]) == bits([first])
        assert "decode, prefill" in error_of(lambda: module.forward(*prompt))
        assert "decode, prefill" in error_of(lambda: module.encode, AttributeError)
    with ws.Module(files.pte, files.ptd, "decode") as alone:
        assert alone.methods == ("decode",)
        alone.forward(*token)


def test_weights_count_once(exported):
    """In the file, in the account of the device, and in what is copied."""
    spec, files = METHODS["methods_decoder"], exported("methods_decoder")
    with open_module(files, 200 * everything(files)) as module:
        play(module, spec.passes())
        stats = module.stats()
    weights = list(map(len, weight_entries(files.ptd).values()))
    assert stats["bytes_copied"] <= sum(weights), "a weight was copied for each method"
    model = sum(p.numel() * p.element_size() for p in spec.model().parameters())
    assert sum(weights) <= 1.1 * model + stats["direct_bytes"], "the file holds a weight twice"
    assert stats["total_weight_bytes"] <= 1.1 * model


def test_sessions_interleaved_equal_their_references(exported):
    spec, files = METHODS["methods_decoder"], exported("methods_decoder")
    torch.manual_seed(3)
    prompts = [[("prefill", (torch.randint(0, 256, (1, n)), torch.arange(n)))] for n in (5, 9, 3)]
    steps = [[("decode", (torch.randint(0, 256, (1, 1)), torch.tensor([n + at]))) for at in range(6)] for n in (5, 9, 3)]
    calls = [prompt + step for prompt, step in zip(prompts, steps)]
    with open_module(files, least(files)) as first:
        sessions = [first, first.new_session(), first.new_session()]
        found = [[] for _ in sessions]
        for at in range(len(calls[0])):
            for number, session in enumerate(sessions):
                found[number] += play(session, [calls[number][at]])
        for number in range(3):
            for outputs, expected in zip(found[number], spec.eager(calls[number])):
                assert largest_error(outputs, expected) <= spec.tolerance, f"session {number}"
        state = first.stats()["session_bytes"]
        assert 0 < state <= 2 * first.stats()["direct_bytes"]
        sessions[1].close()
        assert first.stats()["session_bytes"] == state // 2
    # The first one may end before the others.
    sessions[2].reset_state()
    for outputs, expected in zip(play(sessions[2], calls[2]), spec.eager(calls[2])):
        assert largest_error(outputs, expected) <= spec.tolerance
    sessions[2].close()


def test_a_hundred_sessions_leave_memory_flat(exported):
    spec, files = METHODS["methods_decoder"], exported("methods_decoder")
    calls = spec.passes(2)

    def some(module, count):
        for _ in range(count):
            with module.new_session() as session:
                play(session, calls)

    with open_module(files, least(files)) as module:
        some(module, 20)
        before = held_kib()
        some(module, 100)
        grown = held_kib() - before
        assert grown < 4096, f"{grown} KiB more after a hundred sessions"
        assert module.stats()["session_bytes"] == 0


def test_calls_of_threads_take_turns_or_are_refused(exported):
    spec, files = METHODS["methods_decoder"], exported("methods_decoder")
    calls = spec.passes()
    with open_module(files, least(files)) as module:
        expected = [bits(found) for found in play(module, calls)]
        sessions, wrong = [module, *(module.new_session() for _ in range(2))], []

        def work(session):
            for _ in range(5):
                session.reset_state()
                if [bits(found) for found in play(session, calls)] != expected:
                    wrong.append(session)

        threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        for session in sessions[1:]:
            session.close()


def test_other_options_of_a_later_load_are_refused(exported):
    """By a stock Module one could give each method options of its own; here the command line and the C interface can."""
    files = exported("methods_decoder")
    text = error_of(lambda: open_module(files, least(files) - 1))
    assert f"{least(files)} bytes" in text or str(least(files)) in text
    for shares, word in (("decode=0.5", "prefill"), ("decode=0.5,prefill=0.4,other=0.1", "'other'")):
        assert word in error_of(lambda s=shares: open_module(files, weight_offload_method_share=s))
    with open_module(files, least(files), weight_offload_method_share="decode=0.98,prefill=0.02") as module:
        play(module, METHODS["methods_decoder"].passes())


def test_the_command_line_tells_of_all_methods(exported):
    from weightstream._run import runtime

    files = exported("methods_decoder")
    status, text = runtime.command(["plan", str(files.pte), "--budget", "50%"])
    assert status == 0, text
    assert "methods 'decode', 'prefill'" in text
    # Weights smaller than a page of a GPU have no plan.
    assert DEVICE != "cpu" or "that is the mean: decode" in text
    status, text = runtime.command(["inspect", str(files.pte), str(files.ptd)])
    assert status == 0, text
    for method in ("decode", "prefill"):
        assert f"method '{method}': compiled code takes" in text
    assert text.count("layers.0.qkv.weight") == 1, "a shared weight is listed once"
    status, text = runtime.command(["plan", str(files.pte), "--method", "encode"])
    assert status != 0
    assert "encode" in text
