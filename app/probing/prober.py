"""Takes measurements: parks idle ranks, sends a probe's requests at once, reads latencies, types the errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from app.localization.events import Event, failed, measured, timed_out
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.probing.access import ReplicaAccess
from app.probing.budget import Budget
from app.probing.errors import Failure
from app.probing.limits import too_heavy
from app.probing.ranks import HungError, Plan, RankRequests
from app.probing.requests import probe_prompts, probe_tokens
from app.probing.window import Window, common_window, flatten

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
    """

    def __init__(
        self,
        access: ReplicaAccess,
        settings: Settings,
        budget: Budget,
        *,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._interrupted = interrupted
        self._access = access
        self._settings = settings
        self._budget = budget
        self._ranks = RankRequests(access, settings.gpus)
        # Ranks whose last request went to their own GPU: their idle dummy steps disturb nobody.
        self._parked: set[int] = set()
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
            return self._event(probe, refused, wall_ms=0.0, discarded=0)
        tokens = probe_tokens(probe, self._settings.tokens)
        discarded, spent_s = 0, 0.0
        while True:
            await self._pause(self._budget.reserve(probes=1, tokens=tokens + 2 * len(self._to_park(probe))))
            started = time.perf_counter()
            outcome = await self._attempt(probe)
            spent_s += time.perf_counter() - started
            too_short = isinstance(outcome, Failure) and outcome.code == "no_common_window"
            if not too_short or discarded == MAX_DISCARDS:
                return self._event(probe, outcome, wall_ms=round(1000 * spent_s, 3), discarded=discarded)
            discarded += 1

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
        if isinstance(outcome, Censored):
            return timed_out(
                probe,
                waited_ms=outcome.waited_ms,
                engine_alive=outcome.engine_alive,
                in_flight=self._ranks.in_flight,
                wall_ms=wall_ms,
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
        )

    async def _attempt(self, probe: Probe) -> Window | Failure | Censored:
        parking = True
        try:
            failure = await self._park(probe)
            parking = False
            return failure or await self._probe(probe)
        except HungError as hung:
            under_test = self._ranks.in_flight
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
        """Park every rank, one after the other: if one hangs or refuses, it alone is under test."""
        for rank in range(self._settings.gpus):
            if self._interrupted():
                raise ProbeInterruptedError
            failure = await self._park_ranks([rank])
            if failure is not None:
                return failure
        self._warm = True
        return None

    async def _park_ranks(self, ranks: Sequence[int]) -> Failure | None:
        if not ranks:
            return None
        prompts = {r: probe_prompts(self._access, {r: 1}, tokens=1) for r in ranks}
        outcome = await self._ranks.ask(Plan(prompts, max_tokens=1))
        if isinstance(outcome, Failure):
            return outcome
        self._parked.update(ranks)
        return None

    async def _probe(self, probe: Probe) -> Window | Failure:
        prompts = {
            sender: probe_prompts(self._access, receivers, tokens=self._settings.prompt_tokens)
            for sender, receivers in probe.sends.items()
        }
        looping = {sender for sender, receivers in probe.sends.items() if receivers.keys() == {sender}}
        self._parked -= probe.sends.keys() - looping
        outcome = await self._ranks.ask(Plan(prompts, self._settings.decode_tokens))
        if isinstance(outcome, Failure):
            return outcome
        self._parked |= looping
        sent_at, tokens = outcome
        window = common_window(flatten({rank: t.times for rank, t in tokens.items()}), sent_at)
        if self._settings.signal == "tbt" and not window.usable:
            return Failure(
                "no_common_window",
                f"the senders decoded together for only {100 * window.share:.0f} % of the shortest stream, in"
                f" {MAX_DISCARDS + 1} tries; more decode_tokens make the window longer",
            )
        return window

    async def _engine_alive(self) -> bool:
        """Whether a rank other than those under test still answers: a hang freezes the whole engine."""
        others = [r for r in range(self._settings.gpus) if r not in self._ranks.in_flight]
        try:
            return await self._park_ranks((others or self._ranks.in_flight)[:1]) is None
        except HungError:
            return False


def _parking_failure(ranks: Sequence[int], hung: HungError) -> Failure:
    listed = ", ".join(map(str, ranks))
    return Failure(
        "parking_timed_out",
        f"one token to its own GPU took rank {listed} more than {hung.waited_ms / 1000:.1f} s, while another rank"
        " answers",
        ranks[0] if len(ranks) == 1 else None,
    )
