"""What speaks against a part while its tests are slow: some of them are fast, or one GPU is in all slow ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.localization.adaptive.groups import Piece, Test
from app.localization.adaptive.noise import Floats, log_mean

# What else a reading met may have made the reference slow, or one retest; not two in a row.
RETESTS = 2
# Log odds at which a part explains its tests better than any piece of it, or a piece better than the part.
BETTER = math.log(20)


@dataclass
class Doubts:
    """What has to be tested again before a part is accused."""

    _again: list[Test] = field(default_factory=list)
    _fast: list[Test] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether a test that came out fast has not come out slow as often as it takes."""
        return bool(self._again)

    def next(self) -> Test | None:
        """A test that is to be repeated, if there is one."""
        return self._again.pop() if self._again else None

    def before(self, test: Test) -> bool:
        """Take in that a test came out fast; whether it had done so before."""
        known = test in self._fast
        if not known:
            self._fast.append(test)
            self._again = [test] * RETESTS
        return known


@dataclass
class Pieces:
    """Whether a part explains its tests, or one piece of it does: then those without the piece are fast.

    A reading that is far slower than all others would otherwise accuse the part, however many are not slow.
    """

    _whole: Floats | None = None
    _of: dict[Piece, Floats] = field(default_factory=dict)

    def add(self, touched: Iterable[Piece], ratios: Floats) -> None:
        """Take in a test.

        Parameters
        ----------
        touched : iterable of Piece
            What is in it.
        ratios : ndarray of float
            Log-likelihood ratios of "it is slow" by severity.
        """
        self._whole = ratios if self._whole is None else self._whole + ratios
        for piece in touched:
            self._of[piece] = self._of.get(piece, 0.0) + ratios

    @property
    def lead(self) -> float:
        """Log odds of the part against the piece that explains most; infinite where no piece is known."""
        if self._whole is None or not self._of:
            return math.inf
        return log_mean(self._whole) - max(log_mean(ratios) for ratios in self._of.values())
