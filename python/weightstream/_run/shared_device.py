"""The memory of a device that several modules share: ``weight_offload_budget="shared"``."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from .._native.bindings import device_name, last_error, library
from .._native.errors import Error

__all__ = ["device_report", "set_device_budget"]

# As in weightstream.h.
_AUTO = 2**64 - 1


def set_device_budget(device: str, bytes: int | str) -> None:
    """The most that all modules with ``weight_offload_budget="shared"`` may hold on a device, in bytes.

    ``device`` is ``"cpu"``, ``"cuda:0"`` and so on. ``bytes`` may be ``"auto"``, the default: what is free on the device, less what the
    modules take beside their weights. A number below the sum of the modules' least budgets is an error that names the least one. So is one below
    what passes that run hold: try again between them. Otherwise a module that is executing changes when it has.
    """
    if bytes == "auto":
        bytes = _AUTO
    elif isinstance(bytes, bool) or not isinstance(bytes, int) or not 0 <= bytes < _AUTO:
        raise Error(f"set_device_budget: a number of bytes from 0 up or 'auto' is expected, found {bytes!r}")
    if library().ws_set_device_budget(device_name(device).encode(), bytes) != 0:
        raise Error(last_error())


def device_report(device: str = "cpu") -> dict[str, Any]:
    """Who has what of a device, and why.

    ``cap_bytes``, ``held_bytes`` and the ``rule`` that is followed now; and for each of the ``tenants`` its name, priority, floor, grant,
    the bytes that it holds, its passes, and ``why`` in a sentence. ``ranges`` has the name and bytes of each range that holds some;
    ``order`` has everybody, and whose memory goes last first.
    ``cap_bytes`` is None where it follows what is free on the device (``"auto"``) and nothing shares the device yet.
    """
    native, text = library(), ctypes.c_char_p()
    if native.ws_device_report(device_name(device).encode(), ctypes.byref(text)) != 0:
        raise Error(last_error())
    return json.loads(text.value or b"{}")
