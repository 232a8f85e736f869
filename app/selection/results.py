"""The three answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Result = Literal["pass", "fail", "inconclusive"]


def worst(results: Iterable[Result]) -> Result:
    """Of several: inconclusive when one is, else fail when one is, else pass."""
    found = set(results)
    return "inconclusive" if "inconclusive" in found else "fail" if "fail" in found else "pass"
