"""Noise-free and noisy sessions of strategy adaptive, and what must hold of each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs, Transport
from app.localization.components import Component, gpu, parse_component, path
from app.localization.events import Event, measured, timed_out
from app.localization.faults import Fault
from app.localization.physics import PhysicsReplica
from app.localization.probes import Probe
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.verdict import Verdict
from tests.localization.conftest import Run

COSTS = Costs()
CALIBRATED, UNKNOWN = Assumptions(costs=COSTS), Assumptions()
TOLD = {"costs given": CALIBRATED, "costs measured": UNKNOWN}
GPU_SLOWDOWN, PATH_SLOWDOWN = 1.5, 3.0

Answer = Callable[[Probe, int], Event]


def adaptive(n: int, told: Assumptions = CALIBRATED, **more: object) -> Settings:
    return Settings(gpus=n, k=2, strategy="adaptive", adaptive=told, **more)  # type: ignore[arg-type]


def fault_sets(n: int, largest: int) -> list[tuple[Component, ...]]:
    components = [gpu(r) for r in range(n)] + [path(u, v) for u, v in combinations(range(n), 2)]
    return [faults for count in range(1, largest + 1) for faults in combinations(components, count)]


def slowdowns(components: Iterable[Component]) -> list[Fault]:
    return [Fault(c, GPU_SLOWDOWN if c.kind == "gpu" else PATH_SLOWDOWN) for c in components]


def noise_free(settings: Settings, slow: Iterable[Component], transport: Transport = "serial") -> Run:
    return answered(settings, PhysicsReplica(settings.gpus, slowdowns(slow), COSTS, transport).answer)


def answered(settings: Settings, answer: Answer, *, limit: int = 5_000) -> Run:
    """Drive a session by any answers; one that never ends is an error."""
    session, events = Session(settings), []
    for number in range(limit):
        upcoming = session.next()
        if isinstance(upcoming, Verdict):
            return Run(session, upcoming, events)
        events.append(answer(upcoming, number))
        session.observe(events[-1])
    raise AssertionError(f"no verdict after {limit} measurements")


def reading(probe: Probe, ms: float) -> Event:
    return measured(probe, tbt_ms=ms, ttft_ms=ms, wall_ms=ms)


def cut_off(probe: Probe, ms: float, *, alive: bool = True) -> Event:
    """The whole probe took at least ``ms`` a token."""
    waited = ms * 16
    return timed_out(probe, waited_ms=waited, engine_alive=alive, wall_ms=waited, in_flight=probe.members)


def isolates(probe: Probe, suspect: Component, accused: Sequence[Component]) -> bool:
    """Whether a probe holds the suspect, and nothing else of its kind that is accused."""
    touched = set(probe.components())
    paths = {component for component in touched if component.kind == "path"}
    if suspect.kind == "path":
        return paths == {suspect}
    return not paths and suspect in touched and not touched & (set(accused) - {suspect})


def links_of(suspect: Component, probe: Probe) -> list[bool]:
    """For every path of a probe, whether it is one of the suspect's."""
    return [suspect.members[0] in c.members for c in probe.components() if c.kind == "path"]


def check_confirmed(run: Run) -> None:
    """Never an accusation without a confirmation: twice beside a probe like its isolating one, but without it.

    A GPU accused for its links: a probe over its paths only, beside one over those of others.
    """
    links = " ".join(reason["text"] for reason in run.verdict.reasons if reason["code"] == "links")
    by_links = set(links.partition(": as")[0].split(", "))
    probes = run.session.strategy.record.probes
    accused = [parse_component(name) for name in run.verdict.names]
    order = [event.data["number"] for event in run.events]
    for suspect, component in zip(run.verdict.suspects, accused, strict=True):
        if suspect.name in by_links:
            alone = {n for n in suspect.accusing if all(links_of(component, probes[n]))}
            clean = {n for n, probe in probes.items() if not any(links_of(component, probe))}
        else:
            others = [other for other in accused if str(other) not in by_links]
            alone = {n for n in suspect.accusing if isolates(probes[n], component, others)}
            clean = {n for n, probe in probes.items() if component not in probe.components()}
        pairs = sum((a in alone and b in clean) or (a in clean and b in alone) for a, b in pairwise(order))
        assert pairs >= 2, f"{component} was accused without confirmation"
