"""The failures that a user may meet, each with the fact in its message, on the device under test; and after each one the same
process loads another model, and it is right.

`test_refusals.py` has the many ways in which files can be wrong, `test_driver.py` the machines that cannot run a program at all.
"""

from __future__ import annotations

import json
import threading
import time

import fake_driver
import pytest
import weightstream as ws
from doctor import Ptd, changed_library, changed_record, function_that_fails, sealed, swap_two_probes
from exports import Files
from models import ZOO
from support import Input, error_of, open_module, refused_in_a_child, run_passes
from zoo import largest_error

pytestmark = pytest.mark.models("mlp", "experts")
VICTIM = "layers.2.weight"
UPDATE = "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
TEN_TERABYTES = 10 * 10**12


@pytest.fixture
def mlp(exported):
    return exported("mlp")


@pytest.fixture(autouse=True)
def the_process_goes_on(exported, reference):
    """Behind each failure."""
    yield
    module = open_module(exported("experts"))
    for found, expected in zip(run_passes(module, ZOO["experts"].passes(3)), reference("experts"), strict=False):
        assert largest_error(found, expected) <= ZOO["experts"].tolerance


def with_ptd(files: Files, folder, change) -> Files:
    ptd = Ptd(files.ptd)
    change(ptd)
    return Files(files.name, files.pte, ptd.save(folder / "doctored.ptd"))


def test_a_budget_below_the_floor(mlp):
    floor = ws.required_budget(str(mlp.pte))
    message = error_of(lambda: open_module(mlp, floor - 1))
    assert f"weight budget of {floor - 1} bytes" in message
    assert f"needs at least {floor} bytes" in message


def test_a_weight_is_missing(mlp, tmp_path):
    message = error_of(lambda: open_module(with_ptd(mlp, tmp_path, lambda ptd: ptd.entries.pop(VICTIM))))
    assert f"'{VICTIM}' is missing" in message


@pytest.mark.parametrize("fact", ["dtype", "sizes"])
def test_a_weight_differs(fact, mlp, tmp_path):
    def change(ptd):
        layout = ptd.entries[VICTIM].tensor_layout
        if fact == "dtype":
            layout.scalar_type = type(layout.scalar_type).INT
        else:
            layout.sizes = [128, 512]

    message = error_of(lambda: open_module(with_ptd(mlp, tmp_path, change)))
    assert f"'{VICTIM}': {fact} differ" in message


def test_the_compiled_code_rejects_its_placeholders(mlp, tmp_path):
    pte = changed_library(mlp.pte, tmp_path / "rejects.pte", lambda library: function_that_fails(library, UPDATE))
    files = Files("mlp", pte, sealed(pte, mlp.ptd, tmp_path / "rejects.ptd"))
    for _ in range(2):
        message = error_of(lambda: open_module(files))
        for words in (UPDATE, "placeholders in the place of 'layers.", "offload=False"):
            assert words in message


def test_the_compiled_code_leaves_its_trace(mlp, tmp_path):
    names = []
    pte = changed_record(mlp.pte, tmp_path / "swapped.pte", lambda record: names.append(swap_two_probes(record)))
    module = open_module(Files("mlp", pte, sealed(pte, mlp.ptd, tmp_path / "swapped.ptd")))
    expected, found = names[0]
    for _ in range(2):
        message = error_of(lambda: run_passes(module, ZOO["mlp"].passes(1)))
        assert "left its recorded trace" in message
        assert expected in message
        assert found in message


def test_two_threads_execute_one_module(mlp, reference):
    module, (inputs,), expected = open_module(mlp), ZOO["mlp"].passes(1), reference("mlp")[0]
    messages, wrong, end = [], [], time.monotonic() + 20

    def work():
        while not messages and time.monotonic() < end:
            try:
                found = run_passes(module, [inputs])[0]
            except ws.Error as error:
                messages.append(str(error))
            else:
                wrong.extend([1] if largest_error(found, expected) > ZOO["mlp"].tolerance else [])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert messages, "two threads never met in twenty seconds"
    assert "executing already" in messages[0]
    assert largest_error(run_passes(module, [inputs])[0], expected) <= ZOO["mlp"].tolerance


# --- on a GPU only


@pytest.mark.gpu
def test_a_budget_beyond_the_gpu(mlp):
    message = error_of(lambda: open_module(mlp, TEN_TERABYTES))
    assert str(TEN_TERABYTES) in message
    assert "cuda:0" in message


@pytest.mark.gpu
def test_a_gpu_that_is_not_there(mlp):
    assert "cuda:99" in error_of(lambda: open_module(mlp, weight_offload_device=99))


#: What the driver refuses twice (an attribute: always, as it is asked for several times), as C; `real` calls the machine's own.
REFUSING = """
#include <dlfcn.h>
static int refused;
static void *real(const char *name) {{ return dlsym(dlopen({driver}, RTLD_NOW | RTLD_NOLOAD), name); }}
"""
REGISTER = """
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
  if (refused++ < 2) return 801;
  return ((int (*)(void *, size_t, unsigned))real("cuMemHostRegister_v2"))(p, n, flags);
}
"""
POOL = """
int cuMemPoolCreate(void **pool, const void *props) {
  if (refused++ < 2) return 801;
  return ((int (*)(void **, const void *))real("cuMemPoolCreate"))(pool, props);
}
"""
#: 113: CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
ATTRIBUTE = """
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute == 113) { *value = 0; return 0; }
  return ((int (*)(int *, int, int))real("cuDeviceGetAttribute"))(value, attribute, device);
}
"""
DRIVERS = {
    "registration refused": (REGISTER, ["cuMemHostRegister failed", "CUDA_ERROR_NOT_SUPPORTED"]),
    "pool creation refused": (POOL, ["cuMemPoolCreate failed", "CUDA_ERROR_NOT_SUPPORTED", "cuda:0"]),
    "no read-only registration": (ATTRIBUTE, ["cuda:0", "read-only"]),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", DRIVERS)
def test_the_driver_refuses(case, mlp, tmp_path):
    source, expected = DRIVERS[case]
    head = REFUSING.format(driver=json.dumps(fake_driver.real_driver()))
    environment = fake_driver.build(tmp_path / "driver", head + source, over_real=True)
    message = refused_in_a_child(mlp, mlp, Input(ZOO["mlp"], tmp_path), environment, weight_offload_host="mapped")
    for text in expected:
        assert text in message
