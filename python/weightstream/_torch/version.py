"""Which releases of torch and ExecuTorch can export, and the refusal of the others."""

from __future__ import annotations

import os

from .._native import bindings
from .._native.errors import Error, ExportError

#: Releases whose compiler every cure was tried with. `src/weights/target.rs` lists those whose code the runtime serves.
SUPPORTED = ("2.11", "2.14", "2.15")
#: Set to 1 to export with another release. The checks on the compiled program stay.
OVERRIDE = "WEIGHTSTREAM_ANY_TORCH"


def check(version: str) -> None:
    """Raises :class:`ExportError` if the installed torch is of another release, unless $WEIGHTSTREAM_ANY_TORCH is 1."""
    release = ".".join(version.split("+")[0].split(".")[:2])
    if release in SUPPORTED or os.environ.get(OVERRIDE) == "1":
        return
    raise ExportError(
        f"torch {version} is installed; exports were tried with torch {', '.join(SUPPORTED)} only, and use its compiler's internals: "
        f"pip install 'weightstream[export]' 'torch=={SUPPORTED[-1]}.*', or set {OVERRIDE}=1 to try (the runtime then refuses the program "
        "unless it is set there too)"
    )


def check_executorch() -> None:
    """Raises :class:`ExportError` unless the package executorch is installed, in the one release that this package was built with."""
    try:
        package = bindings.executorch_package()
    except Error as error:
        raise ExportError(str(error)) from None
    if package is None:
        raise ExportError("exporting needs the package executorch, which is not installed: pip install 'weightstream[export]'")
