"""What holds for every test: no network, one thread, and no code of a model left in the user's cache."""

from __future__ import annotations

import os
import tempfile

# Read when the libraries are imported, so before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
_modules = tempfile.TemporaryDirectory(prefix="tpplan-tests-")
os.environ["HF_MODULES_CACHE"] = _modules.name
