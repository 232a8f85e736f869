"""What an emulated replica is told: one validated, immutable document."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.emulator.latency import DEFAULT_PATH_MS, HopClass, LatencyModel, Mode, Transport, host_numbers
from app.emulator.noise import Noise
from app.localization.faults import Fault, parse_faults

MAX_GPUS = 128
"""Each rank may need a listening socket and a few connections, and all steps run in one Python process."""
RankChoice = Literal["header", "url"]
Milliseconds = Annotated[float, Field(ge=0, lt=1e6)]


class EmulatorConfig(BaseModel):
    """An emulated replica.

    Parameters
    ----------
    gpus : int
        Number of ranks, 2 to 128.
    hosts : int or tuple of str
        A count, or one host name per rank.
    faults : tuple of str
        Active from the start, for example ``("gpu:5*2.0", "path:3-17*4")``.
    rank_choice : {"header", "url"}
        ``X-data-parallel-rank`` on one port, or one port per rank.
    transport, mode, fixed_ms, compute_ms, path_ms
        See `app.emulator.latency.LatencyModel`.
    noise_sigma, burst_rate, burst_factor, seed
        See `app.emulator.noise.Noise`.
    max_num_seqs : int, optional
        Sequences that a rank runs at once; by default the manifest's.
    max_num_queued : int, optional
        Requests that may wait on the whole server before it answers 503; None for no limit, as in vLLM.
    recovery_s : float
        How long the server is unhealthy after a GPU error.

    Raises
    ------
    pydantic.ValidationError
        A value out of range, or a fault that cannot be read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: Annotated[int, Field(ge=2, le=MAX_GPUS)]
    hosts: int | tuple[str, ...] = 1
    faults: tuple[str, ...] = ()
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
    max_num_queued: Annotated[int | None, Field(ge=1, le=2**16)] = None
    recovery_s: Annotated[float, Field(ge=0, le=60)] = 0.5

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        parse_faults(self.faults, self.gpus)
        self.latency_model()
        return self

    def parsed_faults(self) -> tuple[Fault, ...]:
        """Return the faults active at the start."""
        return parse_faults(self.faults, self.gpus)

    def latency_model(self) -> LatencyModel:
        """Return the latency model."""
        return LatencyModel(
            self.gpus,
            self.hosts,
            fixed_ms=self.fixed_ms,
            compute_ms=self.compute_ms,
            path_ms=self.path_ms,
            transport=self.transport,
            mode=self.mode,
            noise=Noise(self.noise_sigma, self.burst_rate, self.burst_factor, self.seed),
        )

    def host_names(self) -> tuple[str, ...]:
        """Return the host name of every rank: as given, or ``host-a``, ``host-b``, ... in order."""
        if not isinstance(self.hosts, int):
            return self.hosts
        return tuple(f"host-{_letters(number)}" for number in host_numbers(self.gpus, self.hosts))

    def topology(self) -> dict[str, list[dict[str, object]]]:
        """Return the topology document: per GPU its rank, host and device name."""
        names = self.host_names()
        return {
            "gpus": [
                {"rank": rank, "host": host, "device": f"cuda:{names[:rank].count(host)}"}
                for rank, host in enumerate(names)
            ]
        }


def _letters(number: int) -> str:
    """Return a, b, ... z, aa, ab, ... as spreadsheet columns do."""
    text = ""
    while number >= 0:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
    return text
