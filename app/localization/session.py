"""A localization session: a deterministic fold over answers.

``next()`` gives the next measurement or the verdict, ``observe()`` takes an event in. Worker, simulator,
benchmark and replay drive the same object; feeding a stored log into a new session continues where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.localization.errors import EventError
from app.localization.events import ANSWERS, Event, latency_ms
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.strategies import Note, make_strategy
from app.localization.thresholds import Reading
from app.localization.verdict import Verdict, conclude

# Failures that say nothing about a component: the same measurement is taken again, so often.
RETRYABLE = frozenset({"overloaded", "connection_lost", "no_common_window", "parking_timed_out"})
MAX_FAILURES_IN_A_ROW = 3
# Ranks that a sentence lists.
NAMED = 16


class Session:
    """One localization job.

    Parameters
    ----------
    settings : Settings
        The job's settings.

    Raises
    ------
    SettingsError
        When the strategy is not known.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.strategy = make_strategy(settings)
        self._steps = self.strategy.run()
        self._seconds = 0.0
        self._failures = 0
        self._rails: dict[int, set[int]] = defaultdict(set)
        self.done = 0
        self._pending: Probe | None = None
        self._verdict: Verdict | None = None
        self._advance(None)

    def next(self) -> Probe | Verdict:
        """The measurement to take now, or the verdict. Asking twice gives the same answer."""
        if self._verdict is not None:
            return self._verdict
        assert self._pending is not None
        return self._pending

    @property
    def progress(self) -> tuple[int, int]:
        """Measurements done, and expected in all as far as it is known."""
        if self._verdict is not None:
            return self.done, self.done
        return self.done, max(self.strategy.planned(), self.done + 1)

    @property
    def phase(self) -> int | None:
        """1 or 2 while it runs, None when the verdict is there."""
        return None if self._verdict is not None or self._pending is None else self._pending.phase

    def observe(self, event: Event) -> None:
        """Take one event in.

        Raises
        ------
        EventError
            When the event is no answer to the pending measurement, or comes after the verdict.
        """
        if self._verdict is not None:
            raise EventError(f"{event.type} after the verdict")
        if event.type in ANSWERS:
            self._answer(event)
        elif event.type == "deadline":
            self._stop(Note("deadline", "the job's deadline passed before everything was tested"))
        elif event.type == "cancelled":
            why = event.data
            self._stop(Note(why.get("code", "cancelled"), why.get("detail", "the job was cancelled")))
        elif event.type != "resumed":
            raise EventError(f"a session does not take {event.type} events")

    def _answer(self, event: Event) -> None:
        probe = self._pending
        assert probe is not None
        if not event.answers(probe):
            raise EventError(f"the answer is to probe {event.data.get('number')}, pending is {probe.number}")
        self._seconds += event.data["wall_ms"] / 1000
        if event.type == "failed":
            self._failed(event, probe)
        elif event.type == "timed_out" and not event.data["engine_alive"]:
            in_flight = event.data["in_flight"]
            # An engine that was hung before the job began stops at its first request, too.
            self._stop(_engine_hung(in_flight, first=self.done == 0 and in_flight == [0]))
        else:
            self._failures = 0
            if "rails" in event.data:
                self._rails[probe.number].update(event.data["rails"])
            self.done += 1
            self._advance(self._reading(event))

    def _reading(self, event: Event) -> Reading:
        if event.type == "timed_out":
            # The whole probe took at least so long, so a token did in the mean.
            tokens = self.settings.decode_tokens if self.settings.signal == "tbt" else 1
            return Reading(event.data["waited_ms"] / tokens, censored=True)
        value = latency_ms(event, self.settings.signal)
        if value is None:
            raise EventError(f"the answer to probe {event.data['number']} has no {self.settings.signal}")
        if value <= 0:
            raise EventError(f"the {self.settings.signal} of probe {event.data['number']} is not above zero")
        return Reading(value)

    def _failed(self, event: Event, probe: Probe) -> None:
        code, rank, detail = event.data["code"], event.data.get("rank"), event.data.get("detail", "")
        if code == "rank_refused" and isinstance(rank, int):
            self.strategy.refused(rank)
            self._stop(Note("rank_refused", f"rank {rank} refuses connections on its own URL: {detail}"))
            return
        self._failures += 1
        if code in RETRYABLE and self._failures < MAX_FAILURES_IN_A_ROW:
            return
        self._stop(Note(code, f"{detail} ({_under_test(event.data.get('in_flight') or list(probe.members))})"))

    def _advance(self, reading: Reading | None) -> None:
        try:
            self._pending = next(self._steps) if reading is None else self._steps.send(reading)
        except StopIteration:
            self._pending = None
            self._verdict = self._conclude(None)

    def _stop(self, why: Note) -> None:
        self._steps.close()
        self._pending = None
        self._verdict = self._conclude(why)

    def _conclude(self, interrupted: Note | None) -> Verdict:
        return conclude(
            self.strategy,
            interrupted=interrupted,
            complete=interrupted is None,
            seconds=self._seconds,
            rails=self._rails,
        )


def resume(settings: Settings, events: Iterable[Event]) -> Session:
    """A session brought to where a log ends.

    Raises
    ------
    EventError
        When the log does not fit the session: it was written under other settings or another version.
    """
    session = Session(settings)
    for event in events:
        session.observe(event)
    return session


def _under_test(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED])) + (f" and {len(ranks) - NAMED} more" * (len(ranks) > NAMED))
    which = f"GPU {shown} was" if len(ranks) == 1 else f"GPUs {shown} were"
    return f"while {which} under test"


def _engine_hung(in_flight: list[int], *, first: bool) -> Note:
    """A hang freezes the whole engine, so nothing more can be learnt after the first one (DESIGN section 4)."""
    end = "nothing more can be measured until the server is restarted"
    if first:
        return Note(
            "engine_hung",
            f"the engine hung at the job's first request, to GPU {in_flight[0]}, before any GPU had answered: it"
            f" may be any of them, and {end}",
        )
    between = "" if len(in_flight) == 1 else ", or a path between them,"
    return Note(
        "engine_hung",
        f"the engine hung {_under_test(in_flight)}: that set{between} blocks every step, and {end}",
    )
