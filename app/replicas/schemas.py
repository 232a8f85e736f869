"""The replica document (DESIGN section 8)."""

from __future__ import annotations

import datetime as dt
import uuid
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from app.kit.texts import plain_name
from app.outbound import GuardError, parse_url
from app.outbound.http import tls_context
from app.probe_model.manifest import Manifest
from app.probe_model.serve import ALLGATHER_BACKEND, ROUTED_BACKENDS
from app.probe_model.synthetic import synthetic_manifest
from app.replicas.ranks import format_ranks, parse_ranks

# Routed backends send a token only where its experts are, so paths can be told apart (DESIGN section 4).
ROUTED = frozenset({*ROUTED_BACKENDS, "sparse"})
KNOWN_BACKENDS = sorted({*ROUTED, ALLGATHER_BACKEND, "allgather", "naive"})


def _known_backend(value: str) -> str:
    if value == "moonep":
        raise ValueError("moonep rebalances load at run time, which defeats targeted probes")
    if value not in KNOWN_BACKENDS:
        raise ValueError(f"is not one of {', '.join(KNOWN_BACKENDS)}")
    return value


All2All = Annotated[str, AfterValidator(_known_backend), Field(json_schema_extra={"enum": list(KNOWN_BACKENDS)})]


def _guardable_url(value: str) -> str:
    try:
        return parse_url(value).url
    except GuardError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(plain_name)]
Url = Annotated[str, Field(max_length=2000, examples=["http://10.0.0.5:8000"]), AfterValidator(_guardable_url)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ProbeEndpointIn(_Strict):
    """A URL that serves the probe model, and the ranks behind it."""

    url: Url
    ranks: str = Field(max_length=5000, description="Ranks behind the URL, `0-7` or `0-3,8-11`.", examples=["0-3"])
    rank_choice: Literal["header", "url", "none"] = Field(
        default="header",
        description="`header`: `X-data-parallel-rank` picks a rank, counted within this URL's ranks;"
        " `url`: the URL has one rank; `none`: no way to choose.",
    )
    rail: Name | None = Field(
        default=None,
        description="Name of the way there (NIC, front end). Endpoints with different rails may reach the same"
        " ranks: requests are then spread over them.",
    )

    @field_validator("ranks")
    @classmethod
    def _readable(cls, value: str) -> str:
        parse_ranks(value)
        return value

    @model_validator(mode="after")
    def _one_rank_per_url(self) -> Self:
        if self.rank_choice == "url" and len(parse_ranks(self.ranks)) != 1:
            raise ValueError("with rank_choice 'url' a URL has exactly one rank")
        return self


class ProductionEndpointIn(_Strict):
    """A URL of the production model; only /health and /metrics are ever read."""

    url: Url


class Layout(_Strict):
    """How the replica is parallelised."""

    tp: int = Field(default=1, ge=1, le=1024, description="Tensor-parallel size.")
    dp: int | None = Field(default=None, ge=1, le=1024, description="Data-parallel size; default: one rank a GPU.")
    all2all: All2All = Field(
        default=ALLGATHER_BACKEND,
        description="vLLM's `--all2all-backend`, or `sparse`/`allgather` for a kind. Only routed backends tell"
        " paths apart; the default is vLLM's own.",
    )
    placement: Literal["linear"] = Field(default="linear", description="Expert placement.")


class Auth(_Strict):
    """Credentials for the replica's endpoints; write-only."""

    bearer: SecretStr | None = Field(default=None, max_length=4096)

    @field_validator("bearer")
    @classmethod
    def _header_safe(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not all("!" <= c <= "~" for c in value.get_secret_value()):
            raise ValueError("must be visible ASCII characters")
        return value


class Limits(_Strict):
    """How fast the replica may be probed."""

    probes_per_second: float = Field(default=10.0, ge=0.05, le=10_000, allow_inf_nan=False)
    tokens_per_second: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    max_in_flight: Literal[1] = Field(default=1, description="Probes at a time; only 1 keeps them comparable.")


class Targets(_Strict):
    """The smallest faults worth finding."""

    gpu_slowdown: float = Field(default=1.5, gt=1, le=1000, allow_inf_nan=False)
    path_slowdown: float = Field(default=3.0, gt=1, le=1000, allow_inf_nan=False)
    delay_ms: float = Field(default=10.0, gt=0, le=60_000, allow_inf_nan=False)


def _add_example(schema: dict[str, Any]) -> None:
    """What `faultsense emulate --gpus 8 --hosts 2` serves: made when the schema is, not at import."""
    schema["examples"] = [
        {
            "name": "emulated",
            "gpus": 8,
            "probe_endpoints": [{"url": "http://127.0.0.1:8100", "ranks": "0-7", "rank_choice": "header"}],
            "manifest": synthetic_manifest(8).model_dump(mode="json"),
            "layout": {"all2all": "sparse"},
            "limits": {"probes_per_second": 200},
        }
    ]


class ReplicaIn(_Strict):
    """A replica to register."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_add_example)

    name: Name
    gpus: int = Field(ge=2, le=1024, description="n: GPUs, numbered by expert-parallel rank 0..n-1.")
    probe_endpoints: list[ProbeEndpointIn] = Field(min_length=1, max_length=1024)
    production_endpoints: list[ProductionEndpointIn] = Field(default_factory=list, max_length=1024)
    manifest: Manifest
    layout: Layout = Field(default_factory=Layout)
    auth: Auth = Field(default_factory=Auth)
    ca_pem: str | None = Field(default=None, max_length=200_000, description="CA bundle of the endpoints, PEM.")
    limits: Limits = Field(default_factory=Limits)
    targets: Targets = Field(default_factory=Targets)

    @field_validator("ca_pem")
    @classmethod
    def _readable_ca(cls, value: str | None) -> str | None:
        if value is not None:
            if "\0" in value:  # OpenSSL reads up to it, PostgreSQL cannot store it
                raise ValueError("must not hold a NUL character")
            try:
                tls_context(value)
            except GuardError as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.manifest.gpus != self.gpus:
            raise ValueError(f"manifest.gpus is {self.manifest.gpus}, the replica has {self.gpus} GPUs")
        if self.layout.dp is not None and self.layout.dp * self.layout.tp != self.gpus:
            raise ValueError(
                f"layout.dp x layout.tp is {self.layout.dp * self.layout.tp}, the replica has {self.gpus} GPUs"
            )
        self._check_ranks()
        return self

    def _check_ranks(self) -> None:
        behind = sorted((r, e.rail or "", e.url) for e in self.probe_endpoints for r in parse_ranks(e.ranks))
        self._check_rails(behind)
        named = [rank for rank, _, _ in behind]
        missing = sorted(set(range(self.gpus)) - set(named))
        if missing:
            raise ValueError(f"probe_endpoints: no URL has ranks {format_ranks(missing)}")
        if named[-1] >= self.gpus:
            raise ValueError(f"probe_endpoints: rank {named[-1]} is not below gpus = {self.gpus}")

    def _check_rails(self, behind: list[tuple[int, str, str]]) -> None:
        """A rank may be behind two URLs, but not by mistake: only when both name their rail."""
        for (rank, rail, url), (other, other_rail, other_url) in pairwise(behind):
            if rank == other and (url == other_url or not rail or not other_rail):
                twice = sorted({a for (a, *_), (b, *_) in pairwise(behind) if a == b})
                raise ValueError(
                    f"probe_endpoints: ranks {format_ranks(twice)} are behind two URLs; if these are two ways to"
                    " the same ranks, give each its rail"
                )
            if rank == other and rail == other_rail:
                raise ValueError(f"probe_endpoints: rank {rank} is twice behind the rail {rail!r}")


class LayoutPatch(_Strict):
    """Changes of a layout."""

    tp: int | None = Field(default=None, ge=1, le=1024)
    dp: int | None = Field(default=None, ge=1, le=1024)
    all2all: All2All | None = None
    placement: Literal["linear"] | None = None


class LimitsPatch(_Strict):
    """Changes of limits."""

    probes_per_second: float | None = Field(default=None, ge=0.05, le=10_000, allow_inf_nan=False)
    tokens_per_second: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    max_in_flight: Literal[1] | None = None


class TargetsPatch(_Strict):
    """Changes of targets."""

    gpu_slowdown: float | None = Field(default=None, gt=1, le=1000, allow_inf_nan=False)
    path_slowdown: float | None = Field(default=None, gt=1, le=1000, allow_inf_nan=False)
    delay_ms: float | None = Field(default=None, gt=0, le=60_000, allow_inf_nan=False)


class ReplicaPatch(_Strict):
    """Changes of a replica. What is left out stays; `null` goes back to the default. `gpus` cannot change: jobs
    and topologies count by it, so another size is another replica.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"limits": {"probes_per_second": 5}}]}
    )

    name: Name | None = None
    probe_endpoints: list[ProbeEndpointIn] | None = Field(default=None, min_length=1, max_length=1024)
    production_endpoints: list[ProductionEndpointIn] | None = Field(default=None, max_length=1024)
    manifest: Manifest | None = None
    layout: LayoutPatch | None = None
    auth: Auth | None = Field(default=None, description='`{"bearer": null}` forgets the token.')
    ca_pem: str | None = Field(default=None, max_length=200_000)
    limits: LimitsPatch | None = None
    targets: TargetsPatch | None = None


class ReplicaItem(BaseModel):
    """A registered replica in a list; secrets are never shown."""

    id: uuid.UUID
    name: str
    gpus: int
    probe_endpoints: list[ProbeEndpointIn]
    production_endpoints: list[ProductionEndpointIn]
    layout: Layout
    has_bearer: bool = Field(description="Whether a bearer token is stored.")
    limits: Limits
    targets: Targets
    topology_version: int | None = Field(description="Current topology version; null: none uploaded.")
    created_at: dt.datetime
    links: dict[str, str]


class ReplicaOut(ReplicaItem):
    """A registered replica."""

    manifest: Manifest
    ca_pem: str | None
