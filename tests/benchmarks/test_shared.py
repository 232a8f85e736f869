"""The benchmark of shared parts, on a small plan."""

from __future__ import annotations

from scripts.benchmarks.shared import KINDS, Layout, Plan, page, shared


def test_every_kind_has_a_row_with_its_rates_and_the_page_shows_it() -> None:
    found = shared(Plan((Layout(16, 4, 2), Layout(16, 4, 4)), trials=2, healthy=2), processes=1)
    kinds = [tuple(row["kinds"]) for row in found["rows"]]
    assert kinds == [*((kind,) for kind in KINDS), ("gpu", "nic", "host", "fabric"), (), ("leaf",), ("host",)]
    assert len({row["seed"] for row in found["rows"]}) == len(found["rows"])
    healthy = found["rows"][len(KINDS) + 1]
    assert (healthy["trials"], healthy["exact_rate"], healthy["false_accusation_rate"]) == (2, 1, 0)
    for row in found["rows"]:
        low, high = row["exact_rate_interval"]
        assert low <= row["exact_rate"] <= high
    lines = [line for line in page(found).splitlines() if line.startswith("| 16 x 4")]
    assert len(lines) == len(found["rows"])
    assert sum("two of gpu, nic, host, fabric" in line for line in lines) == 1
