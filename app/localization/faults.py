"""Fault strings: the one notation that emulator, demo and simulator share.

``gpu:5*2.0`` (slower by a factor), ``path:3-17*4``, ``path:3-17+20ms`` (added delay), ``path:3>17+20ms``
(one direction), ``gpu:7!hang``, ``gpu:7!error``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from app.localization.components import Component, gpu, path

Hard = Literal["hang", "error"]

_FAULT = re.compile(
    r"(?:gpu:(?P<gpu>\d{1,6})|path:(?P<u>\d{1,6})(?P<way>[->])(?P<v>\d{1,6}))"
    r"(?:\*(?P<factor>\d+(?:\.\d+)?)|\+(?P<delay>\d+(?:\.\d+)?)ms|!(?P<hard>hang|error))",
    re.ASCII,
)
MAX_FACTOR = 1_000_000.0
MAX_DELAY_MS = 600_000.0


class FaultSyntaxError(ValueError):
    """A fault string that cannot be read; the message shows it and the accepted forms."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    Parameters
    ----------
    component : Component
        The GPU or path at fault.
    factor : float
        Multiplies its cost (1.0: unchanged).
    delay_ms : float
        Added to each message over a path, or to each step with work on a GPU, in milliseconds.
    hard : {"hang", "error"} or None
        A failure instead of a slowdown; GPUs only.
    one_way : tuple of (int, int) or None
        (sender, receiver) when only that direction of a path is affected.
    """

    component: Component
    factor: float = 1.0
    delay_ms: float = 0.0
    hard: Hard | None = None
    one_way: tuple[int, int] | None = None

    def __str__(self) -> str:
        name = f"path:{self.one_way[0]}>{self.one_way[1]}" if self.one_way else str(self.component)
        if self.hard:
            return f"{name}!{self.hard}"
        return f"{name}+{self.delay_ms:.12g}ms" if self.delay_ms else f"{name}*{self.factor:.12g}"

    def affects(self, sender: int, receiver: int) -> bool:
        """Whether a message from ``sender`` to ``receiver`` crosses this path fault."""
        if self.component.kind != "path":
            return False
        if self.one_way is not None:
            return self.one_way == (sender, receiver)
        return self.component.members == (min(sender, receiver), max(sender, receiver))


def parse_fault(text: str, gpus: int | None = None) -> Fault:
    """Read one fault string.

    Parameters
    ----------
    text : str
        For example ``gpu:5*2.0`` or ``path:3>17+20ms``.
    gpus : int, optional
        When given, ranks must be below it.

    Raises
    ------
    FaultSyntaxError
        Unknown form, rank out of range, a factor of at most 0, or a hard fault on a path.
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise FaultSyntaxError(
            f"{text[:80]!r} is not a fault; write gpu:5*2.0, path:3-17*4, path:3-17+20ms, path:3>17+20ms,"
            " gpu:7!hang or gpu:7!error"
        )
    component, one_way = _component(text, match)
    if gpus is not None and max(component.members) >= gpus:
        raise FaultSyntaxError(f"{text!r}: ranks go from 0 to {gpus - 1} here")
    if match["hard"] is not None:
        if component.kind != "gpu":
            raise FaultSyntaxError(f"{text!r}: only a GPU can hang or answer errors")
        return Fault(component, hard="hang" if match["hard"] == "hang" else "error")
    factor, delay_ms = _severity(text, match)
    return Fault(component, factor, delay_ms, one_way=one_way)


def parse_faults(texts: Iterable[str], gpus: int | None = None) -> tuple[Fault, ...]:
    """Read several fault strings, in order; see `parse_fault`."""
    return tuple(parse_fault(text, gpus) for text in texts)


def _component(text: str, match: re.Match[str]) -> tuple[Component, tuple[int, int] | None]:
    if match["gpu"] is not None:
        return gpu(int(match["gpu"])), None
    u, v = int(match["u"]), int(match["v"])
    if u == v:
        raise FaultSyntaxError(f"{text!r}: a path needs two different ranks")
    return path(u, v), (u, v) if match["way"] == ">" else None


def _severity(text: str, match: re.Match[str]) -> tuple[float, float]:
    """Factor and added milliseconds; one of them is neutral."""
    if match["delay"] is not None:
        delay = float(match["delay"])
        if not 0 < delay <= MAX_DELAY_MS:
            raise FaultSyntaxError(f"{text!r}: the delay must be above 0 and at most {MAX_DELAY_MS:g} ms")
        return 1.0, delay
    factor = float(match["factor"])
    if not 0 < factor <= MAX_FACTOR:
        raise FaultSyntaxError(f"{text!r}: the factor must be above 0 and at most {MAX_FACTOR:g}")
    return factor, 0.0
