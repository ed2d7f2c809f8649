"""How often Python looks for garbage, in processes of tpplan's own."""

from __future__ import annotations

import gc

# Objects that are made before it looks, 700 by default: torch and Transformers make half a million while they are
# imported, and keep nearly all of them.
OBJECTS = 50_000


def collect_less_often() -> None:
    """Not for a caller's process, whose garbage is its own."""
    gc.set_threshold(OBJECTS)
