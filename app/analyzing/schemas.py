"""A text to be analysed, and the answer."""

from __future__ import annotations

import uuid
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.topology.schemas import TopologyIn

MATRIX = "latency_us,0,1,2,3\n0,,10,10,10\n1,10,,10,10\n2,10,10,,31\n3,10,10,31,\n"


class AnalysisIn(BaseModel):
    """Measurements made elsewhere."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"text": MATRIX}]})

    text: str = Field(min_length=1, max_length=4_000_000, description="A matrix, pairs, a list, counters, a log.")
    kind: str | None = Field(default=None, max_length=100, description="The format; default: by its content.")
    topology: TopologyIn | None = Field(default=None, description="Where the ranks sit.")
    replica_id: uuid.UUID | None = Field(
        default=None, strict=False, description="Take this replica's current topology instead."
    )

    @model_validator(mode="after")
    def _one_topology(self) -> Self:
        if self.topology is not None and self.replica_id is not None:
            raise ValueError("replica_id: give a topology or a replica that has one, not both")
        return self


class AnalysisSuspect(BaseModel):
    """One accused component."""

    kind: Literal["gpu", "path", "group"] = Field(description="`gpu`: any vertex, such as a rank, node or NIC.")
    members: list[int | str] = Field(description="Ranks, or the input's own names.")
    slowdown: float | None = Field(
        description="Against its like; null without a figure: down, measured zero, or seen by waits or errors."
    )
    name: str


class AnalysisReason(BaseModel):
    """Why the answer is what it is."""

    code: str
    text: str


class AnalysisOut(BaseModel):
    """The answer."""

    format: str
    outcome: Literal["localized", "healthy", "uniform_slowdown", "inconclusive"]
    suspects: list[AnalysisSuspect]
    reasons: list[AnalysisReason]
