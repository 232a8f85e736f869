"""The topology document."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.kit.texts import printable
from app.topology import rules
from app.topology.diff import ChangeKind
from app.topology.errors import TopologyError

MAX_GPUS = 1024
Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]


class GpuPlace(BaseModel):
    """Where one GPU sits. Names are the operator's own; what is not known is left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rank: int = Field(ge=0, le=MAX_GPUS - 1)
    host: Label
    device: Label | None = Field(
        default=None,
        description="Best a UUID, which survives renumbering and names one GPU in all hosts. An ordinal (`3`,"
        " `cuda:3`, `GPU3`) or a PCI address counts within its host.",
    )
    nic: Label | None = Field(default=None, description="NIC of the host that the GPU's traffic leaves by.")
    rail: Label | None = Field(default=None, description="Rail that the NIC is on.")
    leaf: Label | None = Field(default=None, description="Leaf switch above the NIC.")
    rack: Label | None = Field(default=None, description="Rack that the host stands in.")


class Places(BaseModel):
    """GPUs and the switches above them."""

    gpus: list[GpuPlace] = Field(min_length=2, max_length=MAX_GPUS)
    parents: dict[Label, Label] = Field(
        default_factory=dict,
        max_length=4 * MAX_GPUS,
        description="The switch above a switch, tiers of any depth: `{leaf: spine, spine: core}`. Name a group of"
        " switches that a lower one is wired to alike, such as the spines of a pod, as one.",
    )


class TopologyIn(Places):
    """A whole topology: every rank once."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "gpus": [
                        {"rank": r, "host": f"host-{'ab'[r // 4]}", "nic": str(r % 4), "leaf": f"leaf-{r // 4}"}
                        for r in range(8)
                    ],
                    "parents": {"leaf-0": "spine-0", "leaf-1": "spine-0"},
                }
            ]
        },
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            rules.check(self.gpus, self.parents)
        except TopologyError as error:
            raise _at_its_field(error) from None
        return self


class TopologyVersionOut(BaseModel):
    """A version and the time it held."""

    version: int
    valid_from: dt.datetime
    valid_to: dt.datetime | None = Field(description="When the next version began; null: it still holds.")


class ChangeOut(BaseModel):
    """What happened to one GPU, or to one switch."""

    kind: ChangeKind = Field(
        description="The weightiest of what happened: `replaced` is another device at its rank, `moved` is to"
        " another host, `changed` its NIC, rail, leaf, rack, or the notation of its id."
    )
    old_rank: int | None = Field(description="Its rank before; null: it was not there, or it is a switch.")
    rank: int | None = Field(description="Its rank now; null: it is gone, or it is a switch.")
    text: str = Field(description="All of it in words.")


class DifferenceOut(BaseModel):
    """Two versions compared. GPUs are matched by device id, however it is spelt, then by rank."""

    from_version: int
    to_version: int
    changes: list[ChangeOut]
    ranks: list[int | None] = Field(
        description="For every rank of the first version, the rank of the same GPU in the second; null where it is"
        " gone, or where no device id says which it is."
    )
    unchanged: list[int] = Field(
        description="Ranks of the second version that are the same GPUs in the same places: among them,"
        " measurements under either version can be compared."
    )


class TopologyOut(Places):
    """One version of a replica's topology."""

    replica_id: uuid.UUID
    version: int
    valid_from: dt.datetime
    valid_to: dt.datetime | None = Field(description="When the next version began; null: it still holds.")


def _at_its_field(error: TopologyError) -> ValidationError:
    """The error of a whole document, filed under the field that is at fault."""
    problem = PydanticCustomError("topology", "{message}", {"message": error.message})
    return ValidationError.from_exception_data(
        "topology", [InitErrorDetails(type=problem, loc=error.path, input=None)]
    )
