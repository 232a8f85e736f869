"""The lock-step engine: all ranks take every step together, and a step lasts what the latency model says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.emulator.clock import Clock, LoopClock
from app.emulator.latency import LatencyModel, Loads
from app.emulator.noise import NoiseKey
from app.emulator.observer import EngineObserver
from app.emulator.requests import (
    ActiveSequence,
    Destinations,
    EngineBusyError,
    EngineDeadError,
    Rank,
    Reply,
    Request,
    make_sequences,
)
from app.emulator.sharing import SharedGpus
from app.emulator.timeline import Timeline
from app.localization.components import Component
from app.localization.faults import Fault, Hard

MAX_LAG_S = 0.25
"""A step that ends later than this after its time (a paused process) restarts the clock instead of catching up."""
NO_LIMIT = 2**31


@dataclass(slots=True)
class _Batch:
    """One composition of the running sequences; steps that repeat it reuse it, and its time under ``faults``."""

    loads: Loads
    idle: frozenset[int]
    prefill: bool
    faults: tuple[Fault, ...] | None = None
    work_ms: float = 0.0


class Engine:
    """Runs requests in lock-step.

    An idle rank takes part with one dummy token: the first token that it last ran, so it keeps sending to
    that token's GPUs until a request to its own GPU parks it (initially every rank is parked).

    Parameters
    ----------
    model : LatencyModel
        Gives the duration of a step, and the number of ranks.
    destinations : callable
        Token id -> ranks that hold its experts.
    max_num_seqs : int
        Sequences a rank runs at once; others wait.
    max_num_batched_tokens : int
        Tokens that a rank takes in a step, so also the most sequences; longer prompts are cut into chunks.
    max_num_queued : int, optional
        Requests that may wait on all ranks together.
    recovery_s : float
        How long the engine stays dead after a GPU error, s.
    errors_in_step : bool
        Whether an ``error`` fault breaks the step that involves its GPU. False where such a GPU's own port
        refuses connections instead.
    flap_period_s : float
        See `app.emulator.timeline.Timeline`.
    gpus : SharedGpus, optional
        What couples this engine with another on the same GPUs.
    clock : Clock, optional
        By default the event loop's.
    """

    def __init__(
        self,
        model: LatencyModel,
        destinations: Destinations,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int = NO_LIMIT,
        max_num_queued: int | None = None,
        recovery_s: float = 0.5,
        errors_in_step: bool = True,
        flap_period_s: float = 1.0,
        gpus: SharedGpus | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.ranks = tuple(Rank(stale=(number,)) for number in range(model.gpus))
        self.observer = EngineObserver(model.gpus)
        self._model = model
        self._destinations = destinations
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_queued = max_num_queued
        self._recovery_s = recovery_s
        self._errors_in_step = errors_in_step
        self._flap_period_s = flap_period_s
        self._gpus = gpus or SharedGpus()
        self._clock = clock or LoopClock()
        self._timeline = Timeline((), started=0.0)
        self._busy: dict[int, Rank] = {}
        self._dead_until = float("-inf")
        self._turn = 0
        self._batch: _Batch | None = None
        self._work = asyncio.Event()
        self._faults_changed = asyncio.Event()

    @property
    def healthy(self) -> bool:
        """False for a moment after a GPU error; a hung engine is still "healthy", as vLLM's is."""
        return self._clock.now() >= self._dead_until

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults as they were set."""
        return self._timeline.faults

    @property
    def queued(self) -> int:
        """Requests of which nothing has run yet."""
        waiting = (sequence for rank in self._busy.values() for sequence in rank.waiting)
        return len({id(s.request) for s in waiting if not s.request.aborted})

    @property
    def unfinished(self) -> int:
        """Requests taken in and not ended."""
        sequences = (s for rank in self._busy.values() for s in (*rank.running, *rank.waiting))
        return len({id(s.request) for s in sequences if not s.request.aborted})

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults from the next step on, their time begins now; a hung step that is freed goes on."""
        self._timeline = Timeline(
            faults,
            started=self._clock.now(),
            period_s=self._flap_period_s,
            seed=self._model.noise.seed,
        )
        self._faults_changed.set()

    def submit(
        self, rank: int | None, prompts: Sequence[Sequence[int]], limits: Sequence[int], reply: Reply
    ) -> Request:
        """Queue a request; it joins the next step that has room.

        Parameters
        ----------
        rank : int or None
            The rank to run on; None takes turns.
        prompts : sequence of sequence of int
            One non-empty prompt of token ids per sequence.
        limits : sequence of int
            Output tokens per sequence.
        reply : Reply
            Gets the tokens.

        Raises
        ------
        EngineDeadError
            The engine is recovering from an error.
        EngineBusyError
            Too many requests wait.
        """
        if not self.healthy:
            raise EngineDeadError
        if self._max_num_queued is not None and self._is_full(self._max_num_queued):
            raise EngineBusyError
        if rank is None:
            rank, self._turn = self._turn, (self._turn + 1) % len(self.ranks)
        state = self.ranks[rank]
        request = Request(rank, state.requests, reply, self._clock.now(), len(prompts))
        request.sequences = make_sequences(request, prompts, limits, self._destinations)
        state.requests += 1
        state.waiting.extend(request.sequences)
        self._busy[rank] = state
        self._work.set()
        return request

    def _is_full(self, limit: int) -> bool:
        sequences = sum(len(rank.waiting) for rank in self._busy.values())
        return sequences >= limit and self.queued >= limit  # a request has one sequence at least

    def abort(self, request: Request) -> None:
        """Forget a request, for example because its client went away; it leaves when the current step ends."""
        request.aborted = True
        self._work.set()

    def abort_rank(self, rank: int, error: Exception) -> None:
        """End every request of one rank with ``error``."""
        state = self.ranks[rank]
        for request in {sequence.request for sequence in (*state.running, *state.waiting)}:
            if not request.aborted:
                request.reply.failed(error)
                self.abort(request)

    async def run(self) -> None:
        """Step while there is work, sleep while there is none; runs until cancelled."""
        while True:
            await self._work.wait()
            started = self._clock.now()
            while self._schedule():
                started = await self._step(started)
            self._gpus.leave(id(self))
            self._work.clear()

    def _schedule(self) -> bool:
        """Make up the next step; return whether there is one."""
        for number, rank in list(self._busy.items()):
            if any(sequence.request.aborted for sequence in rank.running):
                rank.running = [s for s in rank.running if not s.request.aborted]
                self._batch = None
            if (self._batch is None or rank.waiting) and rank.schedule(
                self._max_num_seqs, self._max_num_batched_tokens
            ):
                self._batch = None
            if not rank.running:
                del self._busy[number]
        return bool(self._busy)

    async def _step(self, started: float) -> float:
        """Run one step that began at ``started``; return when the next one begins."""
        batch = self._batch = self._batch or self._compose()
        duration = self._duration_ms(batch, started) / 1e3
        if self._struck(batch, "hang"):
            await self._until_freed(batch)
            started = self._clock.now()
        deadline = started + duration
        await self._clock.sleep_until(deadline)
        if self._struck(batch, "error"):
            self._die()
            return self._clock.now()
        ended = self._clock.now()
        self.observer.stepped(ended - deadline)
        self._emit(batch, ended)
        return deadline if ended - deadline < MAX_LAG_S else ended

    def _compose(self) -> _Batch:
        loads: dict[int, dict[int, int]] = {}
        prefill = False
        for number, rank in enumerate(self.ranks):
            if not rank.running:
                loads[number] = dict.fromkeys(rank.stale, 1)
                continue
            row: dict[int, int] = {}
            loads[number] = row
            for sequence in rank.running:
                prefill = prefill or sequence.chunk > 0
                for receiver, tokens in sequence.step_row().items():
                    row[receiver] = row.get(receiver, 0) + tokens
            rank.stale = self._destinations(rank.running[0].input_token())
        return _Batch(loads, frozenset(range(len(self.ranks))).difference(self._busy), prefill)

    def _duration_ms(self, batch: _Batch, started: float) -> float:
        """How long the step takes, with what strikes as it begins."""
        faults = self._timeline.at(started)
        if batch.faults != faults:
            batch.faults, batch.work_ms = faults, self._model.work_ms(batch.loads, faults, batch.idle)
        occupancy = 1 - self._model.fixed_ms / batch.work_ms if batch.work_ms else 0.0
        shared = self._gpus.enter(id(self), max(0.0, occupancy))
        return batch.work_ms * self._model.noise.factor(self._noise_keys()) * shared

    def _noise_keys(self) -> set[NoiseKey]:
        if not self._model.noise:
            return set()
        return {
            (number, sequence.request.number, sequence.produced)
            for number, rank in self._busy.items()
            for sequence in rank.running
        }

    def failed_ranks(self, kind: Hard) -> frozenset[int]:
        """Return the ranks whose GPU has a hard fault of this kind now."""
        parts = [fault.component for fault in self.faults if fault.hard == kind]
        return frozenset(part.members[0] for part in parts if isinstance(part, Component))

    def _struck(self, batch: _Batch, kind: Hard) -> bool:
        """Whether a step involves a GPU, or crosses a shared part, that has a hard fault of this kind now."""
        in_step = kind == "hang" or self._errors_in_step
        return any(
            self._model.meets(fault, batch.loads, batch.idle)
            for fault in self.faults
            if fault.hard == kind and (in_step or not isinstance(fault.component, Component))
        )

    async def _until_freed(self, batch: _Batch) -> None:
        while self._struck(batch, "hang"):
            self._faults_changed.clear()
            await self._faults_changed.wait()

    def _emit(self, batch: _Batch, now: float) -> None:
        emitted: dict[Request, list[ActiveSequence]] = {}
        for rank in self._busy.values():
            finished = False
            for sequence in rank.running:
                if sequence.advance():
                    finished = finished or sequence.finished
                    emitted.setdefault(sequence.request, []).append(sequence)
            if finished:
                rank.running = [s for s in rank.running if not s.finished]
                self._batch = None
        if batch.prefill:  # its sequences send something else from now on
            self._batch = None
        for request, sequences in emitted.items():
            if not request.aborted:
                request.open -= sum(sequence.finished for sequence in sequences)
                self.observer.produced(request, sequences, now)
                request.reply.tokens(sequences)

    def _die(self) -> None:
        self._dead_until = self._clock.now() + self._recovery_s
        for number, rank in enumerate(self.ranks):
            self.abort_rank(number, EngineDeadError())
            rank.running, rank.stale = [], (number,)
            rank.waiting.clear()
        self._busy.clear()
        self._batch = None
