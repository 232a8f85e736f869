"""The topology document."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.kit.texts import printable

Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]


class GpuPlace(BaseModel):
    """Where one GPU sits. Names are the operator's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rank: int = Field(ge=0, le=1023)
    host: Label
    device: Label | None = Field(
        default=None, description="Device id within its host, best one that survives renumbering (a UUID)."
    )
    nic: Label | None = None
    rail: Label | None = None
    leaf: Label | None = None


class TopologyIn(BaseModel):
    """A whole topology: every rank once."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"gpus": [{"rank": r, "host": f"host-{'ab'[r // 4]}", "nic": str(r % 4)} for r in range(8)]}
            ]
        },
    )

    gpus: list[GpuPlace] = Field(min_length=2, max_length=1024)

    @model_validator(mode="after")
    def _every_rank_once(self) -> Self:
        ranks = sorted(g.rank for g in self.gpus)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"gpus must name every rank from 0 to {len(ranks) - 1} exactly once")
        devices = [(g.host, g.device) for g in self.gpus if g.device is not None]
        if len(set(devices)) != len(devices):
            raise ValueError("gpus: a host has two GPUs with the same device id")
        return self


class TopologyOut(BaseModel):
    """One version of a replica's topology."""

    replica_id: uuid.UUID
    version: int
    valid_from: dt.datetime
    valid_to: dt.datetime | None
    gpus: list[GpuPlace]
