"""What holds for every test: no network, one thread, and logs of the libraries as a user sees them."""

from __future__ import annotations

import os

# Read when the libraries are imported, so before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
