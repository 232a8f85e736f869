"""The event log of a job: the stored events are the log, and the log replays to the same verdict.

One JSON object a line. The first is ``settings``; ``measured``, ``timed_out`` and ``failed`` answer a probe;
``resumed``, ``deadline`` and ``cancelled`` are facts about the job; ``verdict`` closes an exported log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from app.localization.errors import EventError, ShapeError
from app.localization.probes import Probe
from app.localization.shapes import Clique, read_shape

EventType = Literal["settings", "measured", "timed_out", "failed", "resumed", "deadline", "cancelled", "verdict"]
ANSWERS: frozenset[str] = frozenset({"measured", "timed_out", "failed"})


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log.

    Parameters
    ----------
    type : str
        See the module's text.
    data : dict
        Plain JSON types. Answers carry ``number``, ``repeat``, ``members``, ``phase``, ``purpose``,
        ``sequences`` (of a clique) or ``shape`` (of anything else), and ``wall_ms``; ``measured`` adds
        ``tbt_ms`` and ``ttft_ms``;
        ``timed_out`` adds ``waited_ms``, ``engine_alive`` and ``in_flight``; both add ``rails``, which carried it,
        where there are several;
        ``failed`` adds ``code``, ``detail``, ``rank`` and ``in_flight``. ``cancelled`` may carry ``code`` and
        ``detail``: why.
    """

    type: EventType
    data: dict[str, Any] = field(default_factory=dict)

    def answers(self, probe: Probe) -> bool:
        """Whether this event is an answer to that measurement."""
        return self.type in ANSWERS and all(
            self.data.get(name) == value for name, value in describe(probe).items()
        )


def describe(probe: Probe) -> dict[str, Any]:
    """The fields by which an answer names its probe."""
    shape = probe.shape
    return {
        "number": probe.number,
        "repeat": probe.repeat,
        "members": list(probe.members),
        "phase": probe.phase,
        "purpose": probe.purpose,
        **({"sequences": shape.sequences} if isinstance(shape, Clique) else {"shape": shape.document()}),
    }


def measured(probe: Probe, *, tbt_ms: float | None, ttft_ms: float, wall_ms: float, **extra: Any) -> Event:
    """A probe that was answered in time; latencies in milliseconds."""
    return Event(
        "measured", {**describe(probe), "tbt_ms": tbt_ms, "ttft_ms": ttft_ms, "wall_ms": wall_ms, **extra}
    )


def timed_out(
    probe: Probe, *, waited_ms: float, engine_alive: bool, wall_ms: float, in_flight: Iterable[int], **extra: Any
) -> Event:
    """A probe that hit its deadline: right-censored, at least ``waited_ms`` slow.

    ``in_flight`` are the ranks whose requests were under way: the probe's, or those being parked for it.
    """
    return Event(
        "timed_out",
        {
            **describe(probe),
            "waited_ms": waited_ms,
            "engine_alive": engine_alive,
            "in_flight": sorted(in_flight),
            "wall_ms": wall_ms,
            **extra,
        },
    )


def failed(
    probe: Probe, *, code: str, detail: str, rank: int | None = None, wall_ms: float = 0.0, **extra: Any
) -> Event:
    """A probe that was answered by an error; ``rank`` when one rank alone is to blame."""
    return Event(
        "failed",
        {**describe(probe), "code": code, "detail": detail, "rank": rank, "wall_ms": wall_ms, **extra},
    )


def dump_log(events: Iterable[Event]) -> Iterator[str]:
    """Events as JSON lines, numbered from 0."""
    for seq, event in enumerate(events):
        yield json.dumps({"seq": seq, "type": event.type, **event.data}, allow_nan=False)


def load_log(lines: Iterable[str]) -> list[Event]:
    """Read a log written by `dump_log`.

    Raises
    ------
    EventError
        Broken JSON, unknown type, a gap in the sequence, or a field of the wrong type; names the line.
    """
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            raise EventError(f"line {number}: not JSON ({error})") from None
        events.append(parse_event(document, expected_seq=len(events), place=f"line {number}"))
    if not events:
        raise EventError("the log is empty")
    return events


def parse_event(document: object, *, expected_seq: int, place: str) -> Event:
    """Check one decoded line; see `load_log`."""
    if not isinstance(document, dict):
        raise EventError(f"{place}: not a JSON object")
    kind, seq = document.get("type"), document.get("seq")
    if kind not in get_args(EventType):
        raise EventError(f"{place}: unknown event type {kind!r}")
    if seq != expected_seq:
        raise EventError(f"{place}: sequence number {seq!r} where {expected_seq} is due")
    data = {name: value for name, value in document.items() if name not in ("seq", "type")}
    if kind in ANSWERS:
        _check_answer(kind, data, place)
    if kind == "cancelled" and not all(isinstance(data.get(name, ""), str) for name in ("code", "detail")):
        raise EventError(f"{place}: code and detail must be texts")
    return Event(cast(EventType, kind), data)


def latency_ms(event: Event, signal: str) -> float | None:
    """The judged latency of a ``measured`` event, None when the probe had none."""
    value = event.data[f"{signal}_ms"]
    return None if value is None else float(value)


def _check_answer(kind: str, data: Mapping[str, Any], place: str) -> None:
    for name in ("number", "repeat", "phase", *(() if "shape" in data else ("sequences",))):
        if type(data.get(name)) is not int:
            raise EventError(f"{place}: {name} must be a whole number")
    if "shape" in data:
        _check_shape(data["shape"], place)
    if not _are_ranks(data.get("members")):
        raise EventError(f"{place}: members must be a list of ranks")
    numbers = {"measured": ("ttft_ms", "tbt_ms"), "timed_out": ("waited_ms",), "failed": ()}[kind]
    for name in (*numbers, "wall_ms"):
        if not _is_latency(data.get(name)) and not (name == "tbt_ms" and data.get(name) is None):
            raise EventError(f"{place}: {name} must be a finite number, zero or above")
    if "rails" in data and not _are_ranks(data["rails"]):
        raise EventError(f"{place}: rails must be a list of whole numbers")
    if kind == "timed_out" and type(data.get("engine_alive")) is not bool:
        raise EventError(f"{place}: engine_alive must be true or false")
    if kind == "timed_out" and not _are_ranks(data.get("in_flight")):
        raise EventError(f"{place}: in_flight must be a list of ranks")
    if kind == "failed" and not isinstance(data.get("code"), str):
        raise EventError(f"{place}: code must be a text")


def _are_ranks(value: object) -> bool:
    return isinstance(value, list) and all(type(rank) is int for rank in value)


def _is_latency(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _check_shape(document: object, place: str) -> None:
    try:
        read_shape(document)
    except ShapeError as error:
        raise EventError(f"{place}: shape: {error}") from None
