"""Traces again without torch's own assertions of a program's sizes: the record holds what they say."""

from __future__ import annotations

import contextlib
import unittest.mock

from torch.export import _unlift


def unasserted() -> contextlib.AbstractContextManager[object]:
    """torch leaves them out where ExecuTorch calls. Of a model that takes ``**kwargs`` they name what is not there, and fail."""
    decides = "_ok_to_generate_guards_fn"
    return unittest.mock.patch.object(_unlift, decides, return_value=False) if hasattr(_unlift, decides) else contextlib.nullcontext()
