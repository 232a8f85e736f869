"""The lock-step engine: all ranks take every step together, and a step lasts what the latency model says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.emulator.clock import Clock, LoopClock
from app.emulator.latency import LatencyModel, involved
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
from app.localization.faults import Fault, Hard

MAX_LAG_S = 0.25
"""A step that ends later than this after its time (a paused process) restarts the clock instead of catching up."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """One composition of the running sequences; steps that repeat it reuse it."""

    work_ms: float
    involved: frozenset[int]
    prefill: bool


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
    max_num_queued : int, optional
        Requests that may wait on all ranks together.
    recovery_s : float
        How long the engine stays dead after a GPU error, s.
    errors_in_step : bool
        Whether an ``error`` fault breaks the step that involves its GPU. False where such a GPU's own port
        refuses connections instead.
    clock : Clock, optional
        By default the event loop's.
    """

    def __init__(
        self,
        model: LatencyModel,
        destinations: Destinations,
        *,
        max_num_seqs: int,
        max_num_queued: int | None = None,
        recovery_s: float = 0.5,
        errors_in_step: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.ranks = tuple(Rank(stale=(number,)) for number in range(model.gpus))
        self.faults: tuple[Fault, ...] = ()
        self.observer = EngineObserver(model.gpus)
        self._model = model
        self._destinations = destinations
        self._max_num_seqs = max_num_seqs
        self._max_num_queued = max_num_queued
        self._recovery_s = recovery_s
        self._errors_in_step = errors_in_step
        self._clock = clock or LoopClock()
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
    def queued(self) -> int:
        """Requests of which nothing has run yet."""
        waiting = (sequence for rank in self.ranks for sequence in rank.waiting)
        return len({id(s.request) for s in waiting if not s.request.aborted})

    @property
    def unfinished(self) -> int:
        """Requests taken in and not ended."""
        sequences = (s for rank in self.ranks for s in (*rank.running, *rank.waiting))
        return len({id(s.request) for s in sequences if not s.request.aborted})

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active faults from the next step on; a hung step whose GPU is freed goes on."""
        self.faults = tuple(faults)
        self._batch = None
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
        if self._max_num_queued is not None and self.queued >= self._max_num_queued:
            raise EngineBusyError
        if rank is None:
            rank, self._turn = self._turn, (self._turn + 1) % len(self.ranks)
        state = self.ranks[rank]
        request = Request(rank, state.requests, reply, self._clock.now(), len(prompts))
        request.sequences = make_sequences(request, prompts, limits, self._destinations)
        state.requests += 1
        state.waiting.extend(request.sequences)
        self._work.set()
        return request

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
            while self._admit():
                started = await self._step(started)
            self._work.clear()

    def _admit(self) -> bool:
        busy = False
        for rank in self.ranks:
            if any(sequence.request.aborted for sequence in rank.running):
                rank.running = [s for s in rank.running if not s.request.aborted]
                self._batch = None
            if rank.waiting and rank.admit(self._max_num_seqs):
                self._batch = None
            busy = busy or bool(rank.running)
        return busy

    async def _step(self, started: float) -> float:
        """Run one step that began at ``started``; return when the next one begins."""
        batch = self._batch = self._batch or self._compose()
        duration = batch.work_ms * self._model.noise.factor(self._noise_keys()) / 1e3
        if batch.involved & self.failed_ranks("hang"):
            await self._until_freed(batch)
            started = self._clock.now()
        deadline = started + duration
        await self._clock.sleep_until(deadline)
        if self._errors_in_step and batch.involved & self.failed_ranks("error"):
            self._die()
            return self._clock.now()
        ended = self._clock.now()
        self.observer.stepped(ended - deadline)
        self._emit(batch, ended)
        return deadline if ended - deadline < MAX_LAG_S else ended

    def _compose(self) -> _Batch:
        loads: dict[int, dict[int, int]] = {}
        idle = set()
        prefill = False
        for number, rank in enumerate(self.ranks):
            if rank.running:
                row: dict[int, int] = {}
                loads[number] = row
                for sequence in rank.running:
                    prefill = prefill or not sequence.produced
                    for receiver, tokens in sequence.step_row().items():
                        row[receiver] = row.get(receiver, 0) + tokens
                rank.stale = self._destinations(rank.running[0].input_token())
            else:
                idle.add(number)
                loads[number] = dict.fromkeys(rank.stale, 1)
        work_ms = self._model.work_ms(loads, self.faults, idle)
        return _Batch(work_ms, frozenset(involved(loads, idle)), prefill)

    def _noise_keys(self) -> set[NoiseKey]:
        if not self._model.noise:
            return set()
        return {
            (number, sequence.request.number, sequence.produced)
            for number, rank in enumerate(self.ranks)
            for sequence in rank.running
        }

    def failed_ranks(self, kind: Hard) -> frozenset[int]:
        """Return the ranks whose GPU has a hard fault of this kind now."""
        return frozenset(fault.component.members[0] for fault in self.faults if fault.hard == kind)

    async def _until_freed(self, batch: _Batch) -> None:
        while batch.involved & self.failed_ranks("hang"):
            self._faults_changed.clear()
            await self._faults_changed.wait()

    def _emit(self, batch: _Batch, now: float) -> None:
        emitted: dict[Request, list[ActiveSequence]] = {}
        for rank in self.ranks:
            finished = False
            for sequence in rank.running:
                sequence.produced += 1
                finished = finished or sequence.finished
                emitted.setdefault(sequence.request, []).append(sequence)
            if finished:
                rank.running = [s for s in rank.running if not s.finished]
                self._batch = None
        if batch.prefill:  # its sequences send less from now on
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
        self._batch = None
