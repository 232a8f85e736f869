"""Takes measurements: parks idle ranks, sends a probe's requests at once, reads latencies, types the errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from app.localization.events import Event, failed, measured, timed_out
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.probing.access import ReplicaAccess
from app.probing.budget import Budget
from app.probing.errors import UNREACHABLE, Failure
from app.probing.limits import too_heavy
from app.probing.rails import Choice, Lane, Measured, Rails
from app.probing.ranks import HungError, Plan, RankRequests
from app.probing.requests import probe_prompts, probe_tokens
from app.probing.stream import Tokens
from app.probing.window import Window, common_window, flatten
from app.selection.selector import Strategy

# Probes whose common window was too short are taken again, so often.
MAX_DISCARDS = 5
# Longest sleep between two looks at whether the measurement is still wanted.
AWAKE_S = 1.0


@dataclass(frozen=True, slots=True)
class Censored:
    """A probe that was cut off at its deadline.

    Parameters
    ----------
    waited_ms : float
        It takes at least so long.
    engine_alive : bool
        Whether another rank still answers.
    """

    waited_ms: float
    engine_alive: bool


class ProbeInterruptedError(Exception):
    """A measurement was given up before anything that it would still have sent."""


class Prober:
    """Measures probes on one replica, one at a time.

    Parameters
    ----------
    access : ReplicaAccess
        The replica.
    settings : Settings
        Tokens a sequence, and which ranks exist.
    budget : Budget
        Rate limits.
    interrupted : callable
        Asked before anything is sent; when it says so, `measure` gives up.
    rails : {"smart", "baseline"}
        How the URL of each sequence is chosen, where several reach its sender.
    warm_up_s : float
        Ranks are warmed up for at least so long, and each at least once.
    """

    def __init__(
        self,
        access: ReplicaAccess,
        settings: Settings,
        budget: Budget,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        rails: Strategy = "smart",
        warm_up_s: float = 0.0,
    ) -> None:
        self._interrupted = interrupted
        self._access = access
        self._settings = settings
        self._budget = budget
        self._ranks = RankRequests(access)
        self._rails = Rails(access, settings.tokens, rails)
        self._warm_up_s = warm_up_s
        # Ranks whose last request went to their own GPU: their idle dummy steps disturb nobody.
        self._parked: set[int] = set()
        # The rails of the probe that was sent last.
        self._used: list[int] = []
        self._warm = False
        self._hung = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def leave(self) -> None:
        """Park every rank before going: else an idle one would keep loading the GPUs of its last request.

        Nothing is reported: what goes wrong here, the next job's first measurement meets, too.
        """
        if self._warm and not self._hung:
            with suppress(HungError):
                await self._park_ranks([r for r in range(self._settings.gpus) if r not in self._parked])

    def close(self) -> None:
        """Close all connections."""
        self._ranks.close()

    def selection(self) -> Measured:
        """What was selected for the measured probes; to be asked once, after the last one."""
        return self._rails.finish()

    async def measure(self, probe: Probe) -> Event:
        """Take one measurement, whatever comes of it.

        Returns
        -------
        Event
            ``measured``, ``timed_out`` or ``failed``; ``wall_ms`` includes parking and discarded tries, but
            not the wait for the budget.

        Raises
        ------
        ProbeInterruptedError
            When the measurement is not wanted any more.
        """
        refused = too_heavy(self._access, probe, self._settings)
        if refused is not None:
            self._ranks.in_flight = []
            return self._end(probe, refused, wall_ms=0.0, discarded=0)
        tokens = probe_tokens(probe, self._settings.tokens)
        discarded, spent_s = 0, 0.0
        while True:
            await self._pause(self._budget.reserve(probes=1, tokens=tokens + 2 * len(self._to_park(probe))))
            started = time.perf_counter()
            outcome = await self._attempt(probe)
            spent_s += time.perf_counter() - started
            too_short = isinstance(outcome, Failure) and outcome.code == "no_common_window"
            if not too_short or discarded == MAX_DISCARDS:
                return self._end(probe, outcome, wall_ms=round(1000 * spent_s, 3), discarded=discarded)
            discarded += 1

    def _end(self, probe: Probe, outcome: Window | Failure | Censored, *, wall_ms: float, discarded: int) -> Event:
        if isinstance(outcome, Censored):
            self._rails.fail(f"probe {probe.number} found no answer in {outcome.waited_ms / 1000:.1f} s")
        elif isinstance(outcome, Failure):
            self._rails.fail(f"probe {probe.number} failed: {outcome.code}")
        return self._event(probe, outcome, wall_ms=wall_ms, discarded=discarded)

    async def _pause(self, seconds: float) -> None:
        """Wait for the budget, awake enough to be interrupted."""
        ends = time.perf_counter() + seconds
        while True:
            # At least one turn of the loop: connections that the server closed meanwhile are noticed.
            await asyncio.sleep(max(0.0, min(ends - time.perf_counter(), AWAKE_S)))
            if self._interrupted():
                raise ProbeInterruptedError
            if time.perf_counter() >= ends:
                return

    def _event(
        self, probe: Probe, outcome: Window | Failure | Censored, *, wall_ms: float, discarded: int
    ) -> Event:
        rails = {"rails": self._used} if self._rails.several else {}
        if isinstance(outcome, Censored):
            return timed_out(
                probe,
                waited_ms=outcome.waited_ms,
                engine_alive=outcome.engine_alive,
                in_flight=self._ranks.in_flight,
                wall_ms=wall_ms,
                **rails,
            )
        if isinstance(outcome, Failure):
            return failed(
                probe,
                code=outcome.code,
                detail=outcome.detail,
                rank=outcome.rank,
                in_flight=self._ranks.in_flight,
                wall_ms=wall_ms,
                discarded=discarded,
            )
        return measured(
            probe,
            tbt_ms=None if outcome.tbt_ms is None else round(outcome.tbt_ms, 4),
            ttft_ms=round(outcome.ttft_ms, 4),
            wall_ms=wall_ms,
            skew_ms=round(outcome.skew_ms, 4),
            window=round(outcome.share, 4),
            discarded=discarded,
            **rails,
        )

    async def _attempt(self, probe: Probe) -> Window | Failure | Censored:
        parking = True
        try:
            failure = await self._park(probe)
            parking = False
            outcome = failure or await self._probe(probe)
            return self._other_way(outcome) if isinstance(outcome, Failure) else outcome
        except HungError as hung:
            under_test = self._ranks.in_flight
            if (silent := await self._silent_rail(hung.late)) is not None:
                return silent
            alive = await self._engine_alive()
            self._hung = not alive
            self._ranks.in_flight = under_test
            # The probe itself was never sent: its members must not be taken for slow.
            return _parking_failure(under_test, hung) if parking and alive else Censored(hung.waited_ms, alive)

    def _to_park(self, probe: Probe) -> list[int]:
        """Ranks that must be parked before the probe; at first all of them, one after the other."""
        ranks = range(self._settings.gpus)
        return [r for r in ranks if not self._warm or (r not in probe.sends and r not in self._parked)]

    async def _park(self, probe: Probe) -> Failure | None:
        """One-token requests of idle ranks to their own GPU.

        An idle rank's dummy step repeats the token of its last request; unparked, it would keep loading GPUs
        that the probe is to leave alone, or to find quiet (DESIGN section 4, lock-step).
        """
        if not self._warm:
            return await self._warm_up()
        return await self._park_ranks(self._to_park(probe))

    async def _warm_up(self) -> Failure | None:
        """Park every rank on each of its rails, one after the other: if one hangs or refuses, it alone is under
        test. Round after round until the warm-up has been long enough.
        """
        ends = time.perf_counter() + self._warm_up_s
        first = True
        while first or time.perf_counter() < ends:
            for lane in [Lane(rank, rail) for rank in range(self._settings.gpus) for rail in self._rails.of(rank)]:
                if not first:
                    await self._pause(self._budget.reserve(probes=0, tokens=2))
                if self._interrupted():
                    raise ProbeInterruptedError
                if lane.rail not in self._rails.of(lane.rank):
                    continue  # it was given up meanwhile
                failure = await self._park_lanes([lane])
                if failure is not None and not (failure.code in UNREACHABLE and self._rails.lose(lane.rail)):
                    return failure
            first = False
        self._warm = True
        self._rails.begin()
        return None

    async def _park_ranks(self, ranks: Iterable[int]) -> Failure | None:
        return await self._park_lanes([self._rails.parking(rank) for rank in ranks])

    async def _park_lanes(self, lanes: list[Lane]) -> Failure | None:
        if not lanes:
            return None
        prompts = {lane: probe_prompts(self._access, [lane.rank], tokens=1) for lane in lanes}
        outcome = await self._ranks.ask(Plan(prompts, max_tokens=1))
        if isinstance(outcome, Failure):
            return outcome
        self._parked.update(lane.rank for lane in lanes)
        return None

    async def _probe(self, probe: Probe) -> Window | Failure:
        looping = {sender for sender, receivers in probe.sends.items() if receivers.keys() == {sender}}
        self._parked -= probe.sends.keys() - looping
        choice = self._rails.choose(probe.sends)
        self._used = choice.rails
        try:
            outcome = await self._send(choice)
        except HungError:
            self._rails.dropped(choice)
            raise
        if isinstance(outcome, Failure):
            return outcome
        self._parked |= looping
        return self._window(*outcome)

    async def _send(self, choice: Choice) -> tuple[float, dict[Lane, Tokens]] | Failure:
        prompts = {
            lane: probe_prompts(self._access, receivers, tokens=self._settings.prompt_tokens)
            for lane, receivers in choice.receivers.items()
        }
        outcome = await self._ranks.ask(Plan(prompts, self._settings.decode_tokens))
        if isinstance(outcome, Failure):
            self._rails.dropped(choice)
        else:
            sent_at, tokens = outcome
            self._rails.answered(choice, {lane: t.last - sent_at for lane, t in tokens.items()})
        return outcome

    def _window(self, sent_at: float, tokens: Mapping[Lane, Tokens]) -> Window | Failure:
        window = common_window(flatten(t.times for t in tokens.values()), sent_at)
        if self._settings.signal == "tbt" and not window.usable:
            return Failure(
                "no_common_window",
                f"the senders decoded together for only {100 * window.share:.0f} % of the shortest stream, in"
                f" {MAX_DISCARDS + 1} tries; more decode_tokens make the window longer",
            )
        return window

    def _other_way(self, failure: Failure) -> Failure:
        """A rail that takes no connections is given up where every rank behind it has another one."""
        lost = [rail for rail in sorted(self._ranks.refused) if self._rails.lose(rail)]
        if failure.code not in UNREACHABLE or not lost:
            return failure
        return Failure("connection_lost", f"{failure.detail}; what is behind it has another way", failure.rank)

    async def _silent_rail(self, late: list[Lane]) -> Failure | None:
        """Give up a rail that alone does not answer: its rank does, on another one."""
        lane = late[0]
        others = [rail for rail in self._rails.of(lane.rank) if rail != lane.rail]
        if not others or any(other.rail != lane.rail for other in late):
            return None
        if not await self._answers(Lane(lane.rank, others[0])) or await self._answers(lane):
            return None
        if not self._rails.lose(lane.rail):
            return None
        url = self._access.endpoints[lane.rail].target.url
        return Failure("connection_lost", f"{url} does not answer; rank {lane.rank} does, another way", lane.rank)

    async def _answers(self, lane: Lane) -> bool:
        try:
            return await self._park_lanes([lane]) is None
        except HungError:
            return False

    async def _engine_alive(self) -> bool:
        """Whether a rank other than those under test still answers: a hang freezes the whole engine."""
        others = [r for r in range(self._settings.gpus) if r not in self._ranks.in_flight]
        return await self._answers(self._rails.parking((others or self._ranks.in_flight)[0]))


def _parking_failure(ranks: list[int], hung: HungError) -> Failure:
    listed = ", ".join(map(str, ranks))
    return Failure(
        "parking_timed_out",
        f"one token to its own GPU took rank {listed} more than {hung.waited_ms / 1000:.1f} s, while another rank"
        " answers",
        ranks[0] if len(ranks) == 1 else None,
    )
