"""Documents of selection windows."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.selection.counters import Side, Unit
from app.selection.distribution import Shape
from app.selection.results import Result

Texts = str | dict[str, Any]


def _example() -> dict[str, Any]:
    record = {
        "schema_version": 1,
        "record_type": "rdma_selection_metrics",
        "measurement_window": "snapshot_delta",
        "backend": "tent",
        "op_type": "write",
        "block_size": 1048576,
        "batch_size": 32,
        "num_threads": 4,
        "selection": {
            "allocations": 500,
            "single_path_allocations": 500,
            "multi_path_allocations": 0,
            "probe_allocations": 0,
            "devices": [
                {
                    "dev_id": 0,
                    "available": True,
                    "selected_slices": 500,
                    "selected_bytes": 524288000,
                    "device_name": "mlx5_0",
                    "numa_node": 0,
                }
            ],
        },
    }
    before = {"port_xmit_data": 1000, "port_rcv_data": 2000}
    return {
        "records": json.dumps(record) + "\n",
        "rails": {"all": [{"local": "mlx5_0", "remote": "mlx5_4"}]},
        "before": {"source": {"mlx5_0": before}, "target": {"mlx5_4": before}},
        "after": {
            "source": {"mlx5_0": {**before, "port_xmit_data": 132001000}},
            "target": {"mlx5_4": {**before, "port_rcv_data": 132002000}},
        },
        "unit": "words4",
    }


class SelectionWindowIn(BaseModel):
    """Selection records of a run, and what is needed to judge them. All or nothing is stored."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_example()]})

    records: str = Field(
        min_length=1, description="Lines of JSON: `rdma_selection_metrics`, `target_metrics` beside them."
    )
    rails: Texts = Field(description="The rail file, as text or as the object it holds.")
    before: Texts = Field(
        description="Port counters of source and target before the run: JSON, sysfs, Prometheus."
    )
    after: Texts = Field(description="The same after it.")
    unit: Unit = Field(description="What a count is: sysfs `port_xmit_data` has words of 4.")


class RailOut(BaseModel):
    """One rail."""

    local: str
    remote: str | None = Field(description="Null for a device that is not eligible and was selected all the same.")
    selected_bytes: int
    source_wire_bytes: int | None
    target_wire_bytes: int | None
    result: Result
    reason: str


class OtherPortOut(BaseModel):
    """A port that no rail uses."""

    side: Side
    device: str
    moved_bytes: int | None
    result: Result
    reason: str


class DistributionOut(BaseModel):
    """How evenly bytes were selected."""

    basis: str
    shape: Shape
    shares: dict[str, float]
    gini: float
    max_over_mean: float


class ReasonOut(BaseModel):
    """A remark on the whole."""

    code: str
    text: str


class RailSuspectOut(BaseModel):
    """What the last job accuses, and the rails that failed at the same NICs."""

    job_id: uuid.UUID
    kind: Literal["gpu", "group"]
    members: list[int] = Field(description="Ranks.")
    rails: list[str] = Field(description="Devices that failed.")
    nics: list[str] = Field(description="`host/NIC` of the ranks.")


class SelectionWindowOut(BaseModel):
    """A stored window and its judgement."""

    id: uuid.UUID
    replica_id: uuid.UUID
    created_at: dt.datetime
    topology_version: int | None = Field(description="The replica's topology when the window was uploaded.")
    records: int = Field(description="Selection records in it.")
    result: Result
    rails: list[RailOut]
    distribution: DistributionOut
    other_ports: list[OtherPortOut]
    reasons: list[ReasonOut]
    suspects: list[RailSuspectOut] = Field(
        description="Of the replica's last verdict under the same topology: those whose GPUs are all at NICs with"
        " the name of a rail that failed. Two measurements that agree."
    )
    links: dict[str, str]
