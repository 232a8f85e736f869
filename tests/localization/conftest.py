"""Helpers that drive sessions without any replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from app.localization.components import parse_component
from app.localization.events import Event, measured, timed_out
from app.localization.probes import Probe
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.verdict import Verdict

Latency = Callable[[Probe], float]


@dataclass
class Run:
    """A finished session, its log and its verdict."""

    session: Session
    verdict: Verdict
    events: list[Event] = field(default_factory=list)

    @property
    def probes(self) -> list[Probe]:
        return list(self.session.strategy.record.probes.values())

    def phase(self, number: int) -> list[Probe]:
        return [probe for probe in self.probes if probe.phase == number]

    @property
    def codes(self) -> set[str]:
        return {reason["code"] for reason in self.verdict.reasons}


def drive(settings: Settings, latency: Latency, *, deadline_ms: float | None = None, limit: int = 50_000) -> Run:
    """Answer every probe with ``latency(probe)``; above ``deadline_ms`` it is cut off there."""
    session, events = Session(settings), []
    for _ in range(limit):
        upcoming = session.next()
        if isinstance(upcoming, Verdict):
            return Run(session, upcoming, events)
        ms = latency(upcoming)
        if deadline_ms is not None and ms > deadline_ms:
            event = timed_out(
                upcoming, waited_ms=deadline_ms, engine_alive=True, wall_ms=deadline_ms, in_flight=upcoming.members
            )
        else:
            event = measured(upcoming, tbt_ms=ms, ttft_ms=ms, wall_ms=ms)
        events.append(event)
        session.observe(event)
    raise AssertionError(f"no verdict after {limit} measurements")


def binary(*faults: str, slowdown: float = 2.0, healthy_ms: float = 20.0) -> Latency:
    """The binary model: a probe is slow when it contains a slow component."""
    slow = [frozenset(parse_component(text).members) for text in faults]

    def latency(probe: Probe) -> float:
        return healthy_ms * (slowdown if any(s.issubset(probe.members) for s in slow) else 1.0)

    return latency


@pytest.fixture
def localize() -> Callable[..., Run]:
    """Run one noise-free session over named faults."""

    def run(faults: Iterable[str], *, slowdown: float = 2.0, **settings: object) -> Run:
        defaults: dict[str, object] = {"repeats": 1, "baseline": "low_decile"}
        return drive(Settings(**{**defaults, **settings}), binary(*faults, slowdown=slowdown))  # type: ignore[arg-type]

    return run
