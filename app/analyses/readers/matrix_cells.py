"""Checks that every matrix goes through."""

from __future__ import annotations

import numpy as np

from app.analyses.errors import UnreadableInput
from app.analyses.readers.numbers import LARGEST, SMALLEST
from app.analyses.records import Matrix

#: More ranks than any replica has; beyond it a matrix is a mistake or an attack.
MAX_RANKS = 1024


def check_values(values: Matrix, field: str, *, wait: bool) -> None:
    """Refuse what cannot be measured; zero waits are set to the least wait.

    Raises
    ------
    UnreadableInput
        Naming the cell.
    """
    n = len(values)
    if n < 2:
        raise UnreadableInput("too_few", "a matrix of one rank has no path", field)
    off = ~np.eye(n, dtype=bool)
    for wrong, text in (
        (off & (values > LARGEST), "is no time or bandwidth"),
        (off & (values < 0), "is negative; times and bandwidths are not"),
        (off & (values >= 0) & (values < SMALLEST), "is zero, which no latency and no bandwidth is"),
    ):
        if wait and "zero" in text:
            break
        if wrong.any():
            i, j = (int(k) for k in np.argwhere(wrong)[0])
            raise UnreadableInput("bad_number", f"{values[i, j]:g}: {text}", f"{field}, row {i}, column {j}")
    known = values[off & np.isfinite(values) & (values >= SMALLEST)]
    if not known.size:
        raise UnreadableInput("no_values", "the matrix holds no value off its diagonal", field)
    if wait:
        values[off & (values < SMALLEST)] = known.min()
