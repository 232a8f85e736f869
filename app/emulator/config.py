"""What an emulated replica is told: one validated, immutable document."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.emulator.latency import DEFAULT_PATH_MS, LatencyModel, Mode, Transport
from app.emulator.noise import Noise
from app.localization.faults import Fault, parse_faults
from app.localization.placement import HopClass, Place, Placement, layout

MAX_GPUS = 512
"""Each rank may need a listening socket and a few connections, and all steps run in one Python process."""
RankChoice = Literal["header", "url"]
Milliseconds = Annotated[float, Field(ge=0, lt=1e6)]


class ProductionConfig(BaseModel):
    """The production server that shares the GPUs; see `app.emulator.production` for what is coupled, and how.

    Parameters
    ----------
    load : float
        Offered load as a fraction of what the server can do, 0 to 4; above 1 its queue grows.
    prompt_tokens, output_tokens : int
        Of each of its requests.
    max_num_seqs : int
        Sequences that a rank runs at once.
    max_num_queued : int
        Requests that may wait before it answers 503; bounds an overload.
    fixed_ms : float
        Part of every step of it, ms.
    token_cost : float
        What one of its tokens costs a GPU or a path, as a share of a probe's token.
    contention : float
        How far two servers slow each other down: 0 not at all, 1 as if they took turns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    load: Annotated[float, Field(ge=0, le=4)] = 0.0
    prompt_tokens: Annotated[int, Field(ge=1, le=2048)] = 64
    output_tokens: Annotated[int, Field(ge=1, le=2048)] = 64
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = 8
    max_num_queued: Annotated[int, Field(ge=1, le=2**16)] = 4096
    fixed_ms: Milliseconds = 10.0
    token_cost: Annotated[float, Field(ge=0, le=1e3)] = 0.04
    contention: Annotated[float, Field(ge=0, le=1)] = 0.2


class EmulatorConfig(BaseModel):
    """An emulated replica.

    Parameters
    ----------
    gpus : int
        Number of ranks, 2 to 512.
    hosts, nics_per_host, leaves : int or tuple of str, int, int
        The built-in layout, see `app.localization.placement.layout`.
    places : tuple of Place, optional
        The place of every rank, instead of the built-in layout.
    faults : tuple of str
        Active from the start, for example ``("gpu:5*2.0", "path:3-17*4", "nic:host-a/0*3")``.
    flap_period_s : float
        Length of the periods in which a fault with ``@0.3`` strikes once, for 30 % of the period.
    rank_choice : {"header", "url"}
        ``X-data-parallel-rank`` on one port, or one port per rank.
    transport, mode, fixed_ms, compute_ms, path_ms
        See `app.emulator.latency.LatencyModel`.
    noise_sigma, burst_rate, burst_factor, seed
        See `app.emulator.noise.Noise`.
    max_num_seqs : int, optional
        Sequences that a rank runs at once; by default the manifest's.
    max_num_batched_tokens : int, optional
        Tokens that a rank takes in a step, so also the most sequences; by default the manifest's.
    max_num_queued : int, optional
        Requests that may wait on the whole server before it answers 503; None for no limit, as in vLLM.
    recovery_s : float
        How long the server is unhealthy after a GPU error.
    production : ProductionConfig, optional
        A production server on the same GPUs; None for none.

    Raises
    ------
    pydantic.ValidationError
        A value out of range, a fault that cannot be read, or one on a part that the topology lacks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: Annotated[int, Field(ge=2, le=MAX_GPUS)]
    hosts: int | tuple[str, ...] = 1
    nics_per_host: int | None = None
    leaves: int | None = None
    places: tuple[Place, ...] | None = None
    faults: tuple[str, ...] = ()
    flap_period_s: Annotated[float, Field(ge=0.01, le=3600)] = 1.0
    rank_choice: RankChoice = "header"
    transport: Transport = "serial"
    mode: Mode = "sparse"
    fixed_ms: Milliseconds = 3.0
    compute_ms: Milliseconds = 1.25
    path_ms: dict[HopClass, Milliseconds] = Field(default_factory=lambda: dict(DEFAULT_PATH_MS))
    noise_sigma: Annotated[float, Field(ge=0, le=2)] = 0.02
    burst_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    burst_factor: Annotated[float, Field(ge=1, le=1e3)] = 3.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_num_seqs: Annotated[int | None, Field(ge=1, le=2**16)] = None
    max_num_batched_tokens: Annotated[int | None, Field(ge=1, le=2**20)] = None
    max_num_queued: Annotated[int | None, Field(ge=1, le=2**16)] = None
    recovery_s: Annotated[float, Field(ge=0, le=60)] = 0.5
    production: ProductionConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.latency_model()
        self.parsed_faults()
        return self

    @cached_property
    def placement(self) -> Placement:
        """Where the ranks sit."""
        if self.places is not None:
            return Placement(self.places)
        return layout(self.gpus, self.hosts, nics_per_host=self.nics_per_host, leaves=self.leaves)

    def parsed_faults(self) -> tuple[Fault, ...]:
        """Return the faults active at the start."""
        return parse_faults(self.faults, self.gpus, self.placement)

    def latency_model(self) -> LatencyModel:
        """Return the latency model of the probe server."""
        return LatencyModel(
            self.gpus,
            self.placement,
            fixed_ms=self.fixed_ms,
            compute_ms=self.compute_ms,
            path_ms=self.path_ms,
            transport=self.transport,
            mode=self.mode,
            noise=Noise(self.noise_sigma, self.burst_rate, self.burst_factor, self.seed),
        )

    def host_names(self) -> tuple[str, ...]:
        """Return the host name of every rank."""
        return tuple(place.host for place in self.placement.places)

    def topology(self) -> dict[str, Any]:
        """Return the topology document: per GPU its rank, host and device, and NIC, rail and leaf where stated."""
        return self.placement.document()
