"""Numbers as people read them."""

from __future__ import annotations


def gib(size: int) -> str:
    """Bytes as GiB, or as MiB where that would show as nothing."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 // 100 or not size else f"{size / 2**20:.2f} MiB"


def one_line(error: BaseException, limit: int = 500) -> str:
    """An exception of another library as one line of evidence: its type and the first `limit` characters it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:limit]}"
