"""Records, rail files and counters of a run over two rails, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.selection.acceptance import Judgement, RailJudgement, judge
from app.selection.counter_texts import read_counters
from app.selection.counters import Movement, Unit
from app.selection.rails import read_rails
from app.selection.record import Selection, read_records

MIB = 1 << 20
RAILS: dict[str, Any] = {
    "all": [{"local": "mlx5_0", "remote": "mlx5_4"}, {"local": "mlx5_1", "remote": "mlx5_5"}],
    "direct": [{"local": "mlx5_0", "remote": "mlx5_4"}, {"local": "mlx5_1", "remote": "mlx5_5"}],
}


def device(dev_id: int, n: int = 0, slices: int | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "dev_id": dev_id,
        "available": True,
        "selected_slices": -(-n // MIB) if slices is None else slices,
        "selected_bytes": n,
        "device_name": f"mlx5_{dev_id}",
        "numa_node": dev_id // 2,
        **changes,
    }


def selection(*devices: dict[str, Any], allocations: int = 10, single: int = 4, probes: int = 0) -> dict[str, Any]:
    return {
        "allocations": allocations,
        "single_path_allocations": single,
        "multi_path_allocations": allocations - single,
        "probe_allocations": probes,
        "devices": list(devices),
    }


def snapshot(*devices: dict[str, Any], **changes: Any) -> Selection:
    return Selection.model_validate(selection(*devices, **changes))


WORKLOAD = {"backend": "tent", "op_type": "write", "block_size": MIB, "batch_size": 8, "num_threads": 2}


def record(n: Mapping[int, int], **changes: Any) -> dict[str, Any]:
    """A selection record with these bytes by ``dev_id``."""
    return {
        "schema_version": 1,
        "record_type": "rdma_selection_metrics",
        "measurement_window": "snapshot_delta",
        **WORKLOAD,
        "selection": selection(*(device(i, some) for i, some in n.items())),
        **changes,
    }


def target(n: int, operations: int = 10, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "record_type": "target_metrics",
        **WORKLOAD,
        "aggregate_operations": operations,
        "aggregate_transferred_bytes": n,
        "aggregate_throughput_gbps": 12.5,
        "targets": [{"index": 0, "segment_name": "target-a", "transferred_bytes": n}],
        **changes,
    }


def lines(*records: object) -> str:
    return "".join(json.dumps(one) + "\n" for one in records)


def port(transmit: int | None = 1000, receive: int | None = 2000) -> dict[str, int | None]:
    return {"port_xmit_data": transmit, "port_rcv_data": receive}


def counters(source: Mapping[int, int], destination: Mapping[int, int], *, read: bool = False) -> dict[str, Any]:
    """A snapshot in bytes: what each source device has sent and each target device received; READ the reverse."""

    def side(n: Mapping[int, int], sends: bool) -> dict[str, Any]:
        return {
            f"mlx5_{i}": port(1000 + some, 2000) if sends else port(1000, 2000 + some) for i, some in n.items()
        }

    return {"source": side(source, not read), "target": side(destination, read)}


IDLE = counters({0: 0, 1: 0}, {4: 0, 5: 0})


def judged(
    records: str,
    after: dict[str, Any],
    before: dict[str, Any] | None = None,
    *,
    rails: dict[str, Any] | None = None,
    unit: Unit = "bytes",
) -> Judgement:
    movement = Movement(read_counters(json.dumps(before or IDLE)), read_counters(json.dumps(after)), unit)
    return judge(read_records(records), read_rails(json.dumps(rails or RAILS)), movement)


def of(judgement: Judgement, local: str) -> RailJudgement:
    (found,) = (rail for rail in judgement.rails if rail.local == local)
    return found
