"""How the scales of one dim of a weight fall to the ranks, and whether each rank's scales belong to its slice.

Transformers slices the tensor of scales by the style of its weight (DtensorShardOperation.shard_tensor of
distributed/sharding_utils.py) and then gives each scale of a rank an equal part of the rank's slice
(Fp8Dequantize._dequantize_one of integrations/finegrained_fp8.py), whatever the size of a block is.
"""

from __future__ import annotations

from dataclasses import dataclass

RAISES = "from_pretrained raises"
WRONG = "the dequantized weights are silently wrong"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One dim of `size` elements in blocks of `block`, cut over `ranks`. unit: the elements, `rows` or `columns`.

    raising, wrong: the ranks on which loading raises, and those that get scales of other elements than they hold.
    """

    size: int
    block: int
    ranks: int
    unit: str
    raising: tuple[int, ...]
    wrong: tuple[int, ...]

    @property
    def outcome(self) -> str:
        """What goes wrong, empty when every rank gets its own scales."""
        return RAISES if self.raising else WRONG if self.wrong else ""

    def describe(self) -> str:
        """The arithmetic, with the ranks that fail."""
        scales = -(-self.size // self.block)
        share = -(-self.size // self.ranks)
        text = f"{self.size} {self.unit} in blocks of {self.block} have {scales} scale{'s' * (scales != 1)}"
        if self.ranks > 1:
            slices = f"{self.size} / {self.ranks} ranks = {self.size / self.ranks:g} per rank"
            text += f"; {slices}, {share / self.block:g} blocks"
        failing = [f"loading raises on {_ranks_named(self.raising)}"] if self.raising else []
        failing += [f"wrong scales on {_ranks_named(self.wrong)}"] if self.wrong else []
        return f"{text}; {', '.join(failing)}" if self.ranks > 1 and failing else text


def spread(size: int, block: int, ranks: int, unit: str) -> Spread:
    """Where the scales of `size` elements go when weight and scales are each cut over `ranks`, uneven tails last."""
    scales = -(-size // block)
    raising, wrong = [], []
    for rank in range(ranks):
        start, end = slice_of(size, ranks, rank)
        first, last = slice_of(scales, ranks, rank)
        count = last - first
        if count == 0 or end == start or (end - start) % count:
            raising.append(rank)  # modulo by zero, a reshape to nothing, or the ValueError of _dequantize_one
        elif not _belong(start, end, first, count, block):
            wrong.append(rank)
    return Spread(size=size, block=block, ranks=ranks, unit=unit, raising=tuple(raising), wrong=tuple(wrong))


def slice_of(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """(start, end) of a rank: torch's Shard.local_shard_size_and_offset, slices of size / ranks rounded up."""
    share = -(-size // ranks)
    start = min(rank * share, size)
    return start, min(start + share, size)


def _belong(start: int, end: int, first: int, count: int, block: int) -> bool:
    """Whether `count` equal parts of [start, end) lie inside the blocks `first`, `first` + 1, ..., in that order."""
    part = (end - start) // count
    return all(
        (start + index * part) // block == (start + (index + 1) * part - 1) // block == first + index
        for index in range(count)
    )


def _ranks_named(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0 to 5` or `ranks 0 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
