"""Rank lists such as ``0-7`` or ``0-3,8-11``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
MAX_RANK = 1023


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read a rank list.

    Raises
    ------
    ValueError
        Not a list of ranks and ascending ranges, a rank above 1023, or one named twice.
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError("write ranks as 0-7 or 0-3,8-11")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first or last > MAX_RANK:
            raise ValueError(f"ranges ascend and end at {MAX_RANK} at most")
        ranks += range(first, last + 1)
    if len(set(ranks)) != len(ranks):
        raise ValueError("a rank is named twice")
    return tuple(ranks)


def format_ranks(ranks: Sequence[int]) -> str:
    """The shortest text of ascending ranks, for messages."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
