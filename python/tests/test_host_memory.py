"""How weights are held on the host: refused where it can have no effect, and on a GPU right in every way, and counted."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import weightstream as ws
from device_under_test import ON_GPU
from models import ZOO
from support import error_of, open_module, run_passes
from zoo import bits, largest_error

MB = 1 << 20
PASSES = 5
#: What outputs go through.
OUTPUTS = 1 << 20

cpu_program = pytest.mark.skipif(ON_GPU, reason="what programs for the CPU refuse or accept")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@cpu_program
@pytest.mark.models("mlp")
@pytest.mark.parametrize("host", ["pinned", "staged"])
def test_what_only_a_gpu_needs_is_refused_on_the_cpu(host, exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_host=host))
    assert "weight_offload_host" in text
    assert "could have no effect" in text


@cpu_program
@pytest.mark.models("mlp")
def test_a_ring_on_the_cpu_is_refused(exported):
    text = error_of(lambda: open_module(exported("mlp"), weight_offload_staging_mb=64))
    assert "weight_offload_staging_mb" in text
    assert "'cpu'" in text


@pytest.mark.parametrize("host", ["mapped", "pinned"])
def test_a_ring_without_staged_is_refused(host, exported):
    specs = {"weight_offload_host": host, "weight_offload_staging_mb": 64}
    text = error_of(lambda: open_module(exported("mlp"), **specs))
    assert "the ring of 'staged'" in text
    assert f"'{host}'" in text


@cpu_program
@pytest.mark.models("mlp")
@pytest.mark.parametrize("host", ["auto", "mapped"])
def test_what_happens_anyway_on_the_cpu_is_accepted(host, exported):
    stats = open_module(exported("mlp"), weight_offload_host=host).stats()
    assert stats["host_pinned_bytes"] == stats["host_mapped_bytes"] == 0


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    """The mlp, exported for CUDA."""
    from executorch.exir import to_edge_transform_and_lower

    folder = tmp_path_factory.mktemp("cuda")
    files = str(folder / "mlp.pte"), str(folder / "mlp.ptd")
    program = ws.apply_weight_offload(ZOO["mlp"].export())
    partitioner = ws.WeightStreamPartitioner(device="cuda")
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=ws.edge_compile_config())
    ws.save(edge, *files)
    return files


@gpu
@pytest.mark.parametrize("host", ["auto", "mapped", "pinned", "staged"])
def test_right_and_counted_in_every_way(host, on_gpu):
    specs = {"weight_offload_host": host} | ({"weight_offload_staging_mb": 8} if host == "staged" else {})
    spec = ZOO["mlp"]
    passes = spec.passes(PASSES)
    plain = run_passes(ws.Module(*on_gpu), passes)
    with ws.Module(*on_gpu, **specs) as module:
        found = run_passes(module, passes)
        stats = module.stats()
    for out, same, eager in zip(found, plain, spec.eager(passes)):
        assert bits(out) == bits(same)
        assert largest_error(out, eager) <= spec.tolerance
    mapped, pinned = stats["host_mapped_bytes"], stats["host_pinned_bytes"]
    if host == "mapped":
        assert (mapped, pinned) == (os.path.getsize(on_gpu[1]), OUTPUTS)
    elif host == "pinned":
        assert mapped == 0
        assert OUTPUTS < pinned <= os.path.getsize(on_gpu[1]) + 4096 + OUTPUTS
    elif host == "staged":
        assert (mapped, pinned) == (0, 8 * MB + 4096 + OUTPUTS)


@gpu
def test_a_file_cut_under_a_staged_module_fails_the_pass(on_gpu, tmp_path):
    pte, ptd = on_gpu[0], str(tmp_path / "cut.ptd")
    shutil.copy(on_gpu[1], ptd)
    passes = ZOO["mlp"].passes(3)
    module = ws.Module(pte, ptd, weight_offload_host="staged")
    run_passes(module, passes[:1])
    os.truncate(ptd, 4096)
    texts = [error_of(lambda: run_passes(module, passes)) for _ in range(2)]
    assert "cut.ptd: cannot read bytes" in texts[0]
    assert "the file ends at byte 4096" in texts[0]
    assert "cannot be used any more" in texts[1]
    module.close()
    # The process goes on.
    run_passes(ws.Module(*on_gpu, weight_offload_host="staged"), passes)


@gpu
def test_a_ring_that_auto_does_not_use_is_refused_with_the_reason(on_gpu):
    text = error_of(lambda: ws.Module(*on_gpu, weight_offload_staging_mb=8))
    assert "weight_offload_staging_mb" in text
    assert "was chosen, since cuda:0" in text


@gpu
def test_a_ring_that_is_too_small_says_its_least_size(on_gpu):
    text = error_of(lambda: ws.Module(*on_gpu, weight_offload_host="staged", weight_offload_staging_mb=7))
    assert "at least 8 MB" in text
