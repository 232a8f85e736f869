"""What the counters of the rail selector cost, and reading and judging many records."""

from __future__ import annotations

import json
import statistics
import time

from app.selection.acceptance import judge
from app.selection.counter_texts import read_counters
from app.selection.counters import Movement
from app.selection.rails import read_rails
from app.selection.record import TargetRecord, dump_record, read_records
from app.selection.selector import RailInfo, RailSelector
from app.selection.window import MeasurementWindow, Workload
from scripts.benchmarks.common import Result

RAILS, SLICES, REQUESTS, RUNS, RECORDS = 8, 4, 10_000, 7, 10_000
KIB = 1 << 10


class _Uncounted(RailSelector):
    """The same choices without counters."""

    def _count(self, *_: object) -> None:
        return


def selection() -> Result:
    """Microseconds that counting adds to a slice: median of 7 runs, the same loop with and without it in turns."""
    with_counters, without = [], []
    for _ in range(RUNS):
        with_counters.append(_run(RailSelector))
        without.append(_run(_Uncounted))
    added = [a - b for a, b in zip(with_counters, without, strict=True)]
    return {
        "rails": RAILS,
        "slices_a_request": SLICES,
        "with_us_a_slice": round(statistics.median(with_counters), 3),
        "without_us_a_slice": round(statistics.median(without), 3),
        "added_us_a_slice": round(statistics.median(added), 3),
        "target_us": 2.0,
        "records": RECORDS,
        "read_and_judged_s": round(statistics.median(_judged() for _ in range(3)), 3),
        "records_target_s": 5.0,
    }


def _judged() -> float:
    """Seconds for 10,000 windows over 8 rails, each with its target record, and their counters."""
    names = [f"mlx5_{i}" for i in range(RAILS)]
    selector = RailSelector([RailInfo(i, name) for i, name in enumerate(names)])
    window = MeasurementWindow(selector, workers=1)
    window.arrive()
    selector.select(RAILS * KIB, KIB)
    record = window.finish(Workload(KIB, 1, 1, op_type="write", backend="tent"))
    target = TargetRecord(
        schema_version=1,
        record_type="target_metrics",
        **record.model_dump(include={"backend", "op_type", "block_size", "batch_size", "num_threads"}),
        aggregate_operations=1,
        aggregate_transferred_bytes=RAILS * KIB,
    )
    text = f"{dump_record(record)}\n{dump_record(target)}\n" * RECORDS
    rails = json.dumps({"direct": [{"local": name, "remote": name} for name in names]})
    started = time.process_time()
    snapshots = (read_counters(json.dumps(_counters(names, n))) for n in (0, RECORDS * KIB))
    judgement = judge(read_records(text), read_rails(rails), Movement(*snapshots, "bytes"))
    seconds = time.process_time() - started
    assert judgement.result == "pass", judgement.reasons
    return seconds


def _counters(names: list[str], n: int) -> dict[str, object]:
    return {
        side: {name: {"port_xmit_data": n, "port_rcv_data": n} for name in names} for side in ("source", "target")
    }


def _run(kind: type[RailSelector]) -> float:
    selector = kind([RailInfo(i, f"endpoint-{i}") for i in range(RAILS)])
    started = time.process_time()
    for _ in range(REQUESTS):
        for one in selector.select(SLICES * KIB, KIB).slices:
            selector.release(one, 0.001)
    return 1e6 * (time.process_time() - started) / (REQUESTS * SLICES)
