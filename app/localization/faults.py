"""Fault strings: the one notation that emulator, demo and simulator share.

``gpu:5*2.0`` (slower by a factor), ``path:3-17*4``, ``path:3-17+20ms`` (added delay), ``path:3>17+20ms``
(one direction), ``gpu:7!hang``, ``gpu:7!error``; shared parts ``nic:host-a/0*3``, ``host:host-b*2`` (uplink),
``fabric:host-a*2`` (inside the host), ``leaf:1*2``, ``switch:spine-1*2`` (above leaves), ``rail:0*2``, and
``all*1.3`` (the whole replica). After the severity ``/60s`` lets it grow from nothing over a minute, and ``@0.3``
lets it strike 30 % of the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self, cast

from app.localization.components import Component, gpu, path
from app.localization.placement import PartKind, Placement, SharedPart

Hard = Literal["hang", "error"]
Target = Component | SharedPart

_NUMBER = r"\d+(?:\.\d+)?"
_FAULT = re.compile(
    r"(?:gpu:(?P<gpu>\d{1,6})|path:(?P<u>\d{1,6})(?P<way>[->])(?P<v>\d{1,6})"
    r"|nic:(?P<nic>.{1,200}/.{1,200})|(?P<kind>host|fabric|leaf|switch|rail):(?P<name>.{1,200})|(?P<all>all))"
    rf"(?:\*(?P<factor>{_NUMBER})|\+(?P<delay>{_NUMBER})ms|!(?P<hard>hang|error))"
    rf"(?:/(?P<ramp>{_NUMBER})s)?(?:@(?P<duty>{_NUMBER}))?",
    re.ASCII,
)
MAX_FACTOR = 1_000_000.0
MAX_DELAY_MS = 600_000.0
MAX_RAMP_S = 86_400.0
FORMS = (
    "gpu:5*2.0, path:3-17*4, path:3-17+20ms, path:3>17+20ms, gpu:7!hang, gpu:7!error, nic:host-a/0*3,"
    " host:host-b*2, fabric:host-a*2, leaf:1*2, switch:spine-1*2, rail:0*2 or all*1.3, a slowdown also with /60s"
    " (grows over a minute) or @0.3 (strikes 30 % of the time)"
)


class FaultError(ValueError):
    """A fault that cannot be injected; the message says why and what would be accepted."""


class FaultSyntaxError(FaultError):
    """A fault string that cannot be read; the message shows it and the accepted forms."""


class UnknownPartError(FaultError):
    """A fault on a shared part that the topology does not have; the message lists those it has."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    Parameters
    ----------
    component : Component or SharedPart
        The GPU, path or shared part at fault.
    factor : float
        Multiplies its cost (1.0: unchanged).
    delay_ms : float
        Added to each message over a path or shared part, or to each step with work on a GPU, in milliseconds.
    hard : {"hang", "error"} or None
        A failure instead of a slowdown; not of a single path, nor of everything.
    one_way : tuple of (int, int) or None
        (sender, receiver) when only that direction of a path is affected.
    ramp_s : float
        Seconds in which it grows, linearly, from nothing to its whole strength; 0: at once.
    duty : float
        Share of the time in which it strikes, above 0 to 1.
    """

    component: Target
    factor: float = 1.0
    delay_ms: float = 0.0
    hard: Hard | None = None
    one_way: tuple[int, int] | None = None
    ramp_s: float = 0.0
    duty: float = 1.0

    def __str__(self) -> str:
        name = f"path:{self.one_way[0]}>{self.one_way[1]}" if self.one_way else str(self.component)
        if self.hard:
            return f"{name}!{self.hard}"
        severity = f"+{self.delay_ms:.12g}ms" if self.delay_ms else f"*{self.factor:.12g}"
        ramp = f"/{self.ramp_s:.12g}s" if self.ramp_s else ""
        return f"{name}{severity}{ramp}" + (f"@{self.duty:.12g}" if self.duty < 1 else "")

    @property
    def varies(self) -> bool:
        """Whether it changes with time."""
        return self.ramp_s > 0 or self.duty < 1

    def scaled(self, strength: float) -> Self:
        """A steady fault of ``strength`` (0 to 1) times its excess."""
        return replace(
            self,
            factor=1 + (self.factor - 1) * strength,
            delay_ms=self.delay_ms * strength,
            ramp_s=0.0,
            duty=1.0,
        )

    def affects(self, sender: int, receiver: int) -> bool:
        """Whether a message from ``sender`` to ``receiver`` crosses this path fault."""
        if not isinstance(self.component, Component) or self.component.kind != "path":
            return False
        if self.one_way is not None:
            return self.one_way == (sender, receiver)
        return self.component.members == (min(sender, receiver), max(sender, receiver))


def parse_fault(text: str, gpus: int | None = None, placement: Placement | None = None) -> Fault:
    """Read one fault string.

    Parameters
    ----------
    text : str
        For example ``gpu:5*2.0``, ``path:3>17+20ms`` or ``nic:host-a/0*3@0.3``.
    gpus : int, optional
        When given, ranks must be below it.
    placement : Placement, optional
        When given, a shared part must exist in it.

    Raises
    ------
    FaultSyntaxError
        Unknown form, rank out of range, a factor of at most 0, or a hard fault that is none.
    UnknownPartError
        The topology lacks the shared part, or no path crosses it.
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise FaultSyntaxError(f"{text[:80]!r} is not a fault; write {FORMS}")
    component, one_way = _component(text, match)
    if isinstance(component, SharedPart):
        problem = placement.problem_with(component) if placement is not None else None
        if problem:
            raise UnknownPartError(f"{text[:80]!r}: {problem}")
    elif gpus is not None and max(component.members) >= gpus:
        raise FaultSyntaxError(f"{text!r}: ranks go from 0 to {gpus - 1} here")
    if match["hard"] is not None:
        return _hard(text, match, component)
    factor, delay_ms = _severity(text, match)
    ramp_s, duty = _timing(text, match)
    return Fault(component, factor, delay_ms, one_way=one_way, ramp_s=ramp_s, duty=duty)


def parse_faults(
    texts: Iterable[str], gpus: int | None = None, placement: Placement | None = None
) -> tuple[Fault, ...]:
    """Read several fault strings, in order; see `parse_fault`."""
    return tuple(parse_fault(text, gpus, placement) for text in texts)


def _component(text: str, match: re.Match[str]) -> tuple[Target, tuple[int, int] | None]:
    if match["all"] is not None:
        return SharedPart("all"), None
    if match["gpu"] is not None:
        return gpu(int(match["gpu"])), None
    if match["u"] is None:
        name: str = match["nic"] or match["name"]
        return SharedPart(cast(PartKind, match["kind"] or "nic"), name), None
    u, v = int(match["u"]), int(match["v"])
    if u == v:
        raise FaultSyntaxError(f"{text!r}: a path needs two different ranks")
    return path(u, v), (u, v) if match["way"] == ">" else None


def _hard(text: str, match: re.Match[str], component: Target) -> Fault:
    if component.kind in ("path", "all"):
        raise FaultSyntaxError(
            f"{text!r}: only a GPU, NIC, host, fabric, leaf, switch or rail can hang or answer errors"
        )
    if match["ramp"] is not None or match["duty"] is not None:
        raise FaultSyntaxError(f"{text!r}: only a slowdown can grow (/60s) or come and go (@0.3)")
    return Fault(component, hard="hang" if match["hard"] == "hang" else "error")


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


def _timing(text: str, match: re.Match[str]) -> tuple[float, float]:
    """Seconds of growth, and the share of the time."""
    ramp_s = float(match["ramp"] or 0)
    if match["ramp"] is not None and not 0 < ramp_s <= MAX_RAMP_S:
        raise FaultSyntaxError(f"{text!r}: the time after / must be above 0 and at most {MAX_RAMP_S:g} s")
    duty = float(match["duty"] or 1)
    if match["duty"] is not None and not 0 < duty <= 1:
        raise FaultSyntaxError(f"{text!r}: the share after @ must be above 0 and at most 1")
    return ramp_s, duty
