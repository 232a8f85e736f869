"""A topology document as the core's placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.localization.placement import Place, Placement


def placement(document: Mapping[str, Any]) -> Placement:
    """Where the ranks of a checked document sit, by rank."""
    gpus = sorted(document["gpus"], key=lambda gpu: int(gpu["rank"]))
    places = [Place(**{name: value for name, value in gpu.items() if name != "rank"}) for gpu in gpus]
    return Placement(tuple(places), document.get("parents", {}))
