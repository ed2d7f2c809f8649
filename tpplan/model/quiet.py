"""Keeping the libraries' logs, warnings and progress bars off the terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """What the libraries would print is said by diagnostics, or is about weights that are not there."""
    from transformers.utils import logging as transformers_logging

    disabled = logging.root.manager.disable
    bars = transformers_logging.is_progress_bar_enabled()
    logging.disable(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if bars:
            transformers_logging.enable_progress_bar()
