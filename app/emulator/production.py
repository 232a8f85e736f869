"""A production server on the same GPUs as the probe server, and traffic for it.

Two vLLM servers on one set of GPUs: this one has a port, an engine, queues and metrics of its own, and steps
at its own pace. What couples it with the probe server is

- *faults*: both engines run over the same places and meet the same faults;
- *time*: a step of one takes longer while the other is in a step, see `app.emulator.sharing.SharedGpus`;
- *hangs*: a GPU or part that hangs stops each engine at its first step that needs it.

Tokens of the production model go to four GPUs each, chosen by a hash: its traffic reaches every GPU.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import cache
from itertools import chain, count

from app.emulator.clock import LoopClock
from app.emulator.config import EmulatorConfig, ProductionConfig
from app.emulator.engine import Engine
from app.emulator.latency import LatencyModel
from app.emulator.noise import Noise, uniform
from app.emulator.requests import ActiveSequence, Destinations, EngineBusyError, EngineDeadError
from app.emulator.sharing import SharedGpus
from app.probe_model.manifest import Manifest
from app.probe_model.synthetic import synthetic_manifest

MODEL = "production"
EXPERTS_PER_TOKEN = 4
TOKENS = 4096
"""Different tokens in the traffic; what lies beyond the vocabulary only the traffic uses."""
_DRAWS = 8
_MAX_LAG_S = 1.0
_ARRIVAL, _RANK, _PROMPT, _BEGINS = range(4)


def production_manifest(config: EmulatorConfig, production: ProductionConfig) -> Manifest:
    """Name, vocabulary and limits of the production model."""
    return synthetic_manifest(config.gpus, model=MODEL, max_num_seqs=production.max_num_seqs)


def production_model(config: EmulatorConfig, production: ProductionConfig) -> LatencyModel:
    """How long its steps take: its own fixed part, and a share of what a probe's tokens cost."""
    return LatencyModel(
        config.gpus,
        config.placement,
        fixed_ms=production.fixed_ms,
        compute_ms=config.compute_ms * production.token_cost,
        path_ms={hop: ms * production.token_cost for hop, ms in config.path_ms.items()},
        transport=config.transport,
        mode=config.mode,
        noise=Noise(config.noise_sigma, config.burst_rate, config.burst_factor, config.seed ^ 1),
    )


def make_production_engine(config: EmulatorConfig, production: ProductionConfig, gpus: SharedGpus) -> Engine:
    """The production server's engine, with the initial faults."""
    engine = Engine(
        production_model(config, production),
        scattered(config.gpus),
        max_num_seqs=production.max_num_seqs,
        max_num_batched_tokens=production_manifest(config, production).max_num_batched_tokens,
        max_num_queued=production.max_num_queued,
        recovery_s=config.recovery_s,
        flap_period_s=config.flap_period_s,
        gpus=gpus,
    )
    engine.set_faults(config.parsed_faults())
    return engine


def scattered(gpus: int) -> Destinations:
    """Token id -> up to four GPUs, a fixed function of the token."""

    @cache
    def destinations(token: int) -> tuple[int, ...]:
        return tuple(sorted({int(uniform(token, expert) * gpus) for expert in range(EXPERTS_PER_TOKEN)}))

    return destinations


def capacity_rps(model: LatencyModel, production: ProductionConfig, seed: int = 0) -> float:
    """Requests per second that a healthy server completes when every rank is full.

    Each rank then runs ``max_num_seqs`` sequences. A sequence stays for ``output_tokens`` steps, so in the mean
    ``max_num_seqs / output_tokens`` of them take their prompt in. The time of such a step is the mean of a few
    that are drawn at random, noise included.
    """
    step_ms = sum(_full_step_ms(model, production, (seed, draw)) for draw in range(_DRAWS)) / _DRAWS
    return model.gpus * production.max_num_seqs / (production.output_tokens * step_ms / 1e3)


def _full_step_ms(model: LatencyModel, production: ProductionConfig, key: tuple[int, int]) -> float:
    destinations = scattered(model.gpus)
    sequences = [(rank, number) for rank in range(model.gpus) for number in range(production.max_num_seqs)]
    loads: dict[int, dict[int, int]] = {rank: {} for rank in range(model.gpus)}
    for rank, number in sequences:
        begins = uniform(*key, _BEGINS, rank, number) < 1 / production.output_tokens
        prompt = _prompt(uniform(*key, _PROMPT, rank, number), production.prompt_tokens if begins else 1)
        for receiver in chain.from_iterable(map(destinations, prompt)):
            loads[rank][receiver] = loads[rank].get(receiver, 0) + 1
    return model.step_ms(loads, noise_keys=[(*sequence, key[1]) for sequence in sequences])


def _prompt(draw: float, length: int) -> list[int]:
    """Tokens from a number in (0, 1)."""
    first = int(draw * TOKENS)
    return [(first + 7 * index) % TOKENS for index in range(length)]


class _Unread:
    """A reply that nobody reads."""

    def tokens(self, sequences: Sequence[ActiveSequence]) -> None:
        """See `app.emulator.requests.Reply`."""

    def failed(self, error: Exception) -> None:
        """See `app.emulator.requests.Reply`."""


class Traffic:
    """Requests that arrive at random (Poisson) at a production server.

    Request i comes after a gap, to a rank and with a prompt that are a fixed function of (seed, i).

    Parameters
    ----------
    engine : Engine
        Of the production server.
    production : ProductionConfig
        Load and sizes.
    capacity : float
        Requests per second at load 1.
    seed : int
        Chooses the arrivals.
    """

    def __init__(self, engine: Engine, production: ProductionConfig, capacity: float, seed: int) -> None:
        self._engine = engine
        self._production = production
        self._rate = production.load * capacity
        self._seed = seed
        self._clock = LoopClock()
        self._reply = _Unread()
        self.capacity_rps = capacity
        self.offered = 0
        self.refused = 0

    @property
    def offers(self) -> bool:
        """Whether there are any requests."""
        return self._rate > 0

    def gap_s(self, number: int) -> float:
        """Seconds between request ``number`` and the one before."""
        return -math.log(uniform(self._seed, _ARRIVAL, number)) / self._rate

    async def run(self) -> None:
        """Submit requests until cancelled, where there are any."""
        due = self._clock.now()
        for number in count():
            due += self.gap_s(number)
            late = self._clock.now() - due
            if late > _MAX_LAG_S:  # a paused process does not make up for what it missed
                due += late
            await asyncio.sleep(max(0.0, -late))
            self._submit(number)

    def _submit(self, number: int) -> None:
        self.offered += 1
        rank = int(uniform(self._seed, _RANK, number) * len(self._engine.ranks))
        prompt = _prompt(uniform(self._seed, _PROMPT, number), self._production.prompt_tokens)
        try:
            self._engine.submit(rank, [prompt], [self._production.output_tokens], self._reply)
        except (EngineBusyError, EngineDeadError):
            self.refused += 1

    def document(self) -> dict[str, float]:
        """What was offered so far, for /emulator/stats."""
        return {
            "capacity_rps": round(self.capacity_rps, 3),
            "offered_rps": round(self._rate, 3),
            "offered": self.offered,
            "refused": self.refused,
        }
