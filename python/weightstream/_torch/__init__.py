"""Everything that depends on the version of torch: what is replaced in its compiler while a program is compiled, and why.

Each module names what it replaces. `python/tests/test_cures.py` takes each replacement away and
sees an export refuse, or get worse.
"""

from __future__ import annotations

import warnings

import torch

from . import version

# Before any other module of the export side asks for something that another release may lack.
version.check(torch.__version__)
version.check_executorch()

# torch 2.11 warns of its own code whenever a graph is copied, which lowering does a hundred times.
warnings.filterwarnings("ignore", message=r"`torch\._prims_common\.check` is deprecated", category=FutureWarning)
warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated", category=FutureWarning)
