"""Replay a job's log: check every chosen probe and reproduce the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.localization.errors import EventError
from app.localization.events import ANSWERS, Event, describe, load_log
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Parameters
    ----------
    identical : bool
        Every probe was chosen again and the verdict is the same.
    verdict : dict or None
        The verdict of this replay; None when it diverged before one.
    divergence : dict or None
        ``seq``, ``logged`` and ``replayed`` of the first difference.
    """

    identical: bool
    verdict: dict[str, Any] | None
    divergence: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        document: dict[str, Any] = {"identical": self.identical, "verdict": self.verdict}
        return document if self.divergence is None else document | {"divergence": self.divergence}


def replay_lines(lines: Iterable[str]) -> Replay:
    """Replay a log as `GET /jobs/{id}/log` gives it; see `replay`."""
    return replay(load_log(lines))


def replay(events: list[Event]) -> Replay:
    """Feed a log into a new session.

    Raises
    ------
    EventError, SettingsError
        When the log is not one: it does not begin with its settings, or they are out of range.
    """
    if events[0].type != "settings":
        raise EventError("the log does not begin with its settings")
    session = Session(Settings.from_dict(events[0].data))
    for seq, event in enumerate(events[1:], start=1):
        if event.type == "verdict":
            return _compare(seq, event, session)
        divergence = _step(seq, event, session)
        if divergence is not None:
            return Replay(identical=False, verdict=None, divergence=divergence)
    upcoming = session.next()
    if isinstance(upcoming, Verdict):
        return Replay(identical=True, verdict=upcoming.to_dict())
    return _diverged(len(events), "end of log", describe(upcoming), None)


def _step(seq: int, event: Event, session: Session) -> dict[str, Any] | None:
    """Observe one event; the divergence when the session would not have asked for it."""
    upcoming = session.next()
    if isinstance(upcoming, Verdict):
        return {"seq": seq, "logged": event.type, "replayed": "verdict"}
    if event.type in ANSWERS and not event.answers(upcoming):
        logged = {name: event.data.get(name) for name in describe(upcoming)}
        return {"seq": seq, "logged": logged, "replayed": describe(upcoming)}
    session.observe(event)
    return None


def _compare(seq: int, event: Event, session: Session) -> Replay:
    upcoming = session.next()
    if not isinstance(upcoming, Verdict):
        return _diverged(seq, "verdict", describe(upcoming), None)
    replayed = upcoming.to_dict()
    logged = event.data.get("verdict")
    if replayed == logged:
        return Replay(identical=True, verdict=replayed)
    changed = [name for name in replayed if not isinstance(logged, dict) or replayed[name] != logged.get(name)]
    return _diverged(
        seq,
        {name: logged.get(name) if isinstance(logged, dict) else None for name in changed},
        {name: replayed[name] for name in changed},
        replayed,
    )


def _diverged(seq: int, logged: object, replayed: object, verdict: dict[str, Any] | None) -> Replay:
    return Replay(False, verdict, {"seq": seq, "logged": logged, "replayed": replayed})
