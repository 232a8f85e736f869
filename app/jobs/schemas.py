"""Localize request, job, verdict and probe documents (DESIGN section 8)."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.webhooks.schemas import WebhookSecret, WebhookUrl

State = Literal["queued", "running", "succeeded", "failed", "cancelled", "expired"]
Outcome = Literal["localized", "healthy", "uniform_slowdown", "inconclusive"]


class LocalizeRequest(BaseModel):
    """How to localize. Every field has a default: an empty object is a good request."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"repeats": 3, "deadline_s": 600}]}
    )

    strategy: Literal["auto", "adaptive", "faultsense", "pairwise"] = Field(
        default="auto",
        description="`adaptive`: probes in which every rank sends, chosen by what was read so far. `faultsense`:"
        " the paper's two phases with probes of k GPUs, judged by `alpha`. `auto`: `adaptive` where every rank can"
        " be told whom to send to; `faultsense` elsewhere, and where `k`, `alpha`, `repeats`, `aggregate` or"
        " `baseline` is given, which only it takes.",
    )
    k: int | None = Field(
        default=None,
        ge=2,
        le=16,
        description="GPUs a probe; default min(8, n/2) and at least 2; at most n. Not for `adaptive`.",
    )
    target_gpu: float = Field(
        default=1.5, gt=1, le=1000, allow_inf_nan=False, description="`adaptive`: slowdown of a GPU to be found."
    )
    target_path: float = Field(
        default=3.0, gt=1, le=1000, allow_inf_nan=False, description="`adaptive`: slowdown of a path to be found."
    )
    target_delay_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="`adaptive`: milliseconds added on a path to be found.",
    )
    transport: Literal["serial", "shared"] | None = Field(
        default=None,
        description="`adaptive`: whether a rank's sends take turns on its link or flow side by side; null: not"
        " known, so the worse is certified.",
    )
    max_load: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="`adaptive`: most sequences that a rank carries at once; default 16, or what the server and"
        " the replica's limits take.",
    )
    alpha: float = Field(
        default=1.3, gt=1, le=100, allow_inf_nan=False, description="A probe is suspicious above alpha x baseline."
    )
    repeats: int = Field(default=3, ge=1, le=15, description="Measurements a probe.")
    aggregate: Literal["median", "min"] = "median"
    baseline: Literal["median", "low_decile"] | None = Field(
        default=None, description="Default: `median`, or `low_decile` where slow GPUs could be in too many probes."
    )
    signal: Literal["tbt", "ttft"] = Field(default="tbt", description="The latency that is judged.")
    prompt_tokens: int = Field(default=16, ge=1, le=100_000, description="Prompt tokens a destination.")
    decode_tokens: int = Field(default=16, ge=2, le=10_000, description="Decoded tokens a destination.")
    rail_selection: Literal["smart", "baseline"] = Field(
        default="smart",
        description="Where several URLs reach a rank: `smart` prefers the one that answers sooner, `baseline` goes"
        " round.",
    )
    seed: int = Field(default=0, ge=0, le=2**53 - 1)
    deadline_s: float = Field(
        default=900.0, gt=0, le=86_400, allow_inf_nan=False, description="From now, seconds."
    )
    dry_run: bool = Field(default=False, description="Answer with the plan; probe nothing.")
    webhook_url: WebhookUrl | None = Field(default=None, description="Told when this job ends; see /webhooks.")
    webhook_secret: WebhookSecret | None = Field(
        default=None,
        description="Signs what `webhook_url` gets; without it, nothing does. Write-only.",
    )

    @model_validator(mode="after")
    def _secret_of_something(self) -> Self:
        if self.webhook_secret is not None and self.webhook_url is None:
            raise ValueError("webhook_secret: there is no webhook_url that it could sign for")
        return self


class Progress(BaseModel):
    """Measurements done and expected; ``planned`` grows when Phase 2 begins."""

    done: int
    planned: int


class SuspectOut(BaseModel):
    """One accused component."""

    kind: Literal["gpu", "path", "group"] = Field(
        description="`group`: what these GPUs share; a reason says what."
    )
    members: list[int] = Field(description="Ranks.")
    slowdown: float | None = Field(description="Of the probes that isolate it; null for a hard failure.")
    slowdown_is_lower_bound: bool = Field(description="The probes were cut off at their deadline.")
    confidence: float = Field(
        description="`adaptive`: posterior probability by the confirming pairs; else (slow + 1) / (all + 2) over"
        " the measurements that isolated it."
    )
    accusing: list[int] = Field(description="Numbers of slow probes that contain it.")
    acquitting: list[int] = Field(description="Numbers of fast probes that contain it.")
    alternatives: list[str] = Field(description="Components that explain the same measurements as well.")


class Reason(BaseModel):
    """Why the verdict is what it is."""

    code: str
    text: str


class Detectable(BaseModel):
    """The smallest faults that this job could have shown, at best; null: none of this kind."""

    gpu: float | None
    path: float | None
    delay_ms: float | None


class Cost(BaseModel):
    """What the job cost the replica."""

    probes: int = Field(description="Distinct probes.")
    measurements: int = Field(description="Probes, each time one was taken.")
    path_units: int = Field(description="Tokens x directed paths.")
    seconds: float


class VerdictOut(BaseModel):
    """The answer."""

    outcome: Outcome
    suspects: list[SuspectOut]
    masked: list[str] = Field(description="Hidden behind a slow GPU: `path:5-*` is every path at GPU 5.")
    untested: list[str] = Field(description="Neither cleared nor accused; `*` stands for every rank.")
    detectable: Detectable
    cost: Cost
    baseline_ms: float | None = Field(description="The healthy reference, milliseconds.")
    reasons: list[Reason]
    summary: str = Field(description="One sentence.")


class JobError(BaseModel):
    """Why a job failed before it could give a verdict."""

    code: str
    detail: str


class JobOut(BaseModel):
    """One job."""

    id: uuid.UUID
    replica_id: uuid.UUID
    state: State
    phase: Literal[1, 2] | None = Field(description="1: cover, 2: drill-down.")
    progress: Progress
    attempt: int = Field(description="How often a worker took it up; long jobs change hands about every minute.")
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    deadline_at: dt.datetime
    settings: dict[str, Any]
    topology_version: int | None
    verdict: VerdictOut | None
    error: JobError | None
    links: dict[str, str]


class PlanOut(BaseModel):
    """What a localize request would do."""

    settings: dict[str, Any]
    probes: int = Field(description="Probes of Phase 1; Phase 2 depends on what they show.")
    lower_bound: int = Field(
        description="Schonheim bound on any cover with probes of k; 1 for probes of any shape."
    )
    measurements: int
    tokens: int = Field(description="Tokens of Phase 1, without parking.")
    path_units: int = Field(description="Tokens x directed paths of Phase 1: the load on the network.")
    seconds_at_least: float = Field(description="What the replica's limits alone make of Phase 1.")
    detectable: Detectable = Field(description="What the verdict will certify, at best.")
    by_transport: dict[str, Detectable] = Field(
        description="`adaptive`: the same for sends that take turns on a link and for sends side by side, while it"
        " is not known which holds; the worse of them is what is certified."
    )


class BipartiteOut(BaseModel):
    """Every sender sends to every receiver."""

    kind: Literal["bipartite"]
    senders: list[int]
    receivers: list[int]
    sequences: int = Field(description="Of every send.")


class ShiftOut(BaseModel):
    """In every ring, each rank sends to those that follow it by each of the shifts."""

    kind: Literal["shift"]
    rings: list[list[int]]
    shifts: list[int]
    sequences: int = Field(description="Of every send.")


class ExchangeOut(BaseModel):
    """Pairs send to each other both ways, and every rank fills up with sends to itself."""

    kind: Literal["exchange"]
    ranks: list[int]
    pairs: list[list[int]]
    width: int = Field(description="Sequences that every rank sends and receives.")


ShapeOut = Annotated[BipartiteOut | ShiftOut | ExchangeOut, Field(discriminator="kind")]


class ProbeOut(BaseModel):
    """One measurement of a job."""

    seq: int
    at: dt.datetime
    type: Literal["measured", "timed_out", "failed"]
    number: int
    repeat: int
    members: list[int] = Field(description="Ranks that send or receive.")
    sequences: int | None = Field(
        default=None, description="Sequences of every send when every member sends to every member; else null."
    )
    shape: ShapeOut | None = Field(default=None, description="Who sends how much to whom, when it is not that.")
    phase: Literal[1, 2]
    purpose: str = Field(description="`cover`, `reference`, `recheck`, or the component under test.")
    tbt_ms: float | None = None
    ttft_ms: float | None = None
    wall_ms: float
    rails: list[int] | None = Field(
        default=None, description="Which of the replica's probe endpoints carried it, where it has several."
    )
    code: str | None = Field(default=None, description="Why it failed.")
    detail: str | None = None
