"""How far wire bytes may lie from selected ones."""

from __future__ import annotations

from dataclasses import dataclass

from app.selection.errors import TolerancesError

BELOW, ABOVE = 0.02, 0.10
MAX_ABOVE = 1.0
"""From here on a unit that was mistaken (4 times) could hardly be told from what is allowed."""


@dataclass(frozen=True)
class Tolerances:
    """How far wire bytes may lie from selected ones.

    Parameters
    ----------
    below, above : float
        Fractions of the selected bytes. Headers, acknowledgements and retries come on top; nothing may be missing.
    other_bytes : int
        What another port may move at most, bytes,
    other_share : float
        or as a fraction of all selected bytes, whichever is more.

    Raises
    ------
    TolerancesError
        When ``below`` is not from 0 to less than 1, or ``above`` not from 0 to 1.
    """

    below: float = BELOW
    above: float = ABOVE
    other_bytes: int = 1 << 20
    other_share: float = 0.005

    def __post_init__(self) -> None:
        # So written that NaN is refused too.
        if not 0 <= self.below < 1:
            raise TolerancesError(f"must be from 0 to less than 1, not {self.below:g}", field="below")
        if not 0 <= self.above <= MAX_ABOVE:
            raise TolerancesError(f"must be from 0 to {MAX_ABOVE:g}, not {self.above:g}", field="above")

    def allow(self, ratio: float) -> bool:
        """Whether wire bytes in this ratio to the selected ones are those that were selected."""
        return 1 - self.below <= ratio <= 1 + self.above

    def __str__(self) -> str:
        return f"{_shown(1 - self.below)} to {_shown(1 + self.above)}"


def _shown(bound: float) -> str:
    """Two digits, more where there are more."""
    return f"{bound:.2f}" if abs(round(bound, 2) - bound) < 1e-9 else f"{bound:.6g}"
