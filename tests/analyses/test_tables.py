"""Tables as people keep them: what a column, a row, a unit and a name mean."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from app.analyses import UnreadableInput, analyze

RANKS = range(8)


def table(header: str, *rows: object) -> str:
    return "\n".join([header, *map(str, rows)]) + "\n"


def values_of(header: str, slow: int, value: float, normal: float = 100.0) -> str:
    return table(header, *(f"{rank},{value if rank == slow else normal + rank / 10}" for rank in RANKS))


def suspects(text: str) -> list[str]:
    return [suspect.name for suspect in analyze(text).suspects]


def codes(text: str) -> set[str]:
    return {reason.code for reason in analyze(text).reasons}


@pytest.mark.parametrize(
    "unit", ["tokens/s", "Gflop/s", "TFLOPS", "images/sec", "it/s", "samples per second", "tokens_per_s", "qps"]
)
def test_what_is_done_in_a_time_is_bad_where_it_is_low(unit: str) -> None:
    assert suspects(values_of(f"rank,{unit}", 6, 60.0)) == ["rank 6"]
    assert analyze(values_of(f"rank,{unit}", 6, 160.0)).suspects == []


@pytest.mark.parametrize("header", ["latency / ms", "time/s", "step (s)", "duration (min)", "ms per token"])
def test_a_slash_before_the_unit_of_a_time_makes_no_rate(header: str) -> None:
    assert suspects(values_of(f"rank,{header}", 6, 160.0)) == ["rank 6"]


def test_the_least_of_something_is_no_minute() -> None:
    rows = [f"{rank},{20 + 20 * (rank == 5)},45,46,GB/s" for rank in RANKS]
    assert analyze(table("gpu,min,avg,max,unit", *rows)).outcome == "healthy"


@pytest.mark.parametrize("name", ["total", "sum", "average", "max", "std"])
def test_rows_that_sum_up_the_others_are_no_ranks(name: str) -> None:
    text = values_of("rank,step_ms", 3, 100.0) + f"{name},900\n"
    answer = analyze(text)
    assert (answer.outcome, "rows_left_out" in codes(text)) == ("healthy", True)


@pytest.mark.parametrize("unit", ["GB/s (all_reduce busbw)", "GB/s (sendrecv)", "all_to_all_GB/s"])
def test_the_bandwidth_of_a_collective_is_no_wait(unit: str) -> None:
    assert suspects(values_of(f"node,{unit}", 4, 60.0)) == ["rank 4"]
    assert "waits_least" not in codes(values_of(f"node,{unit}", 4, 60.0))


@pytest.mark.parametrize("metric", ["comm_ms", "nccl_kernel_ms", "grad_sync_ms", "allreduce_ms"])
def test_who_is_long_in_collectives_waits_for_others(metric: str) -> None:
    assert analyze(values_of(f"rank,{metric}", 3, 900.0)).suspects == []
    assert suspects(values_of(f"rank,{metric}", 3, 10.0)) == ["rank 3"]


@pytest.mark.parametrize(
    "metric", ["queue_time_ms", "end_time_s", "memory (ms)", "port_xmit_wait", "iowait_ms", "r_await_ms"]
)
def test_load_names_nobody(metric: str) -> None:
    assert codes(values_of(f"rank,{metric}", 3, 900.0)) == {"load_not_speed"}


@pytest.mark.parametrize("unit", ["tokens received", "GiB memory used", "requests running", "% KV cache usage"])
def test_a_list_of_load_names_nobody(unit: str) -> None:
    values = {str(rank): 900.0 if rank == 3 else 100.0 for rank in RANKS}
    data = {"kind": "per_rank", "unit": unit, "higher_is_worse": True, "values": values}
    assert codes(json.dumps(data)) == {"load_not_speed"}


def test_every_column_of_own_work_is_judged() -> None:
    rows = [f"{rank},100,{410 if rank == 3 else 205},500" for rank in RANKS]
    assert suspects(table("rank,fwd_ms,bwd_ms,wait_ms", *rows)) == ["rank 3"]
    # Twice as long at a fiftieth of the work slows nobody.
    rows = [f"{rank},100,205,{12 if rank == 3 else 6}" for rank in RANKS]
    assert analyze(table("rank,fwd_ms,bwd_ms,opt_ms", *rows)).outcome == "healthy"


def test_a_rank_without_a_value_is_told() -> None:
    assert "not_measured" in codes(values_of("rank,step_ms", 3, 100.0) + "8,\n")


def test_ranks_of_a_host_that_is_slow_are_one_group() -> None:
    rows = [f"{rank},h{rank // 4},{150 if rank // 4 == 1 else 100}" for rank in range(16)]
    assert suspects(table("rank,host,step_ms", *rows)) == ["group h1"]


def test_parts_with_the_same_name_are_told_apart_by_host() -> None:
    rows = [f"h{host},mlx5_{nic},{180 if (host, nic) == (1, 2) else 360}" for host in range(4) for nic in range(4)]
    assert suspects(table("host,nic,bw_Gb/s", *rows)) == ["h1:mlx5_2"]
    rows = [f"h{host},mlx5_{nic},{1800 if (host, nic) == (0, 1) else 0}" for host in range(2) for nic in range(2)]
    assert suspects(table("host,device,errors", *rows)) == ["h0:mlx5_1"]


def test_a_row_a_step_is_one_reading_of_each_rank() -> None:
    long = [f"{step},{rank},{200 if rank == 3 else 100}" for step in range(5) for rank in RANKS]
    assert suspects(table("step,rank,step_time_ms", *long)) == ["rank 3"]
    wide = [f"{step}," + ",".join("200" if rank == 3 else "100" for rank in RANKS) for step in range(5)]
    assert suspects(table("step (ms)," + ",".join(f"rank{rank}" for rank in RANKS), *wide)) == ["rank 3"]
    refused(table("step," + ",".join(f"rank{rank}" for rank in RANKS), *wide), "unit_missing")


def refused(text: str, code: str, place: str | None = None) -> None:
    with pytest.raises(UnreadableInput) as error:
        analyze(text)
    assert error.value.code == code
    assert place is None or error.value.place == place


def matrix(names: Sequence[object], rows: Sequence[object], corner: str = "latency_us") -> str:
    cells = [f"{row}," + ",".join("60" if 3 in {row, name} else "20" for name in names) for row in rows]
    return table(f"{corner}," + ",".join(map(str, names)), *cells)


def test_a_matrix_is_one_by_its_header() -> None:
    names = list(range(1, 9))
    assert suspects(matrix(names, names)) == suspects(matrix(names, names[::-1])) == ["rank 3"]
    refused(matrix(names, names[:-1]), "ragged_matrix", "line 1")
    assert suspects(matrix([*names, "avg"], names)) == ["rank 3"]


@pytest.mark.parametrize(
    "header", ["sender,receiver", "gpu_i,gpu_j", "GPU A,GPU B", "pair_a,pair_b", "src,dst", "pair"]
)
def test_ends_of_a_path_have_many_names(header: str) -> None:
    between = "-" if header == "pair" else ","
    pairs = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    rows = [f"{a}{between}{b},{12 if 3 in (a, b) else 45}" for a, b in pairs]
    assert suspects(table(f"{header},GB/s", *rows)) == ["rank 3"]


def test_bandwidth_is_judged_where_the_time_of_the_run_stands_beside_it() -> None:
    rows = [f"{a},{b},10,{12 if 3 in (a, b) else 45}" for a in range(5) for b in range(a + 1, 5)]
    assert suspects(table("src,dst,runtime_s,busbw_GBps", *rows)) == ["rank 3"]


def test_units_are_converted_or_refused() -> None:
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    rows = [f"{a},{b},{'10000,us' if (a, b) == (0, 1) else '10,ms'}" for a, b in pairs]
    assert analyze(table("a,b,value,unit", *rows)).outcome == "healthy"
    rows = [f"{a},{b},{'10,s' if (a, b) == (0, 1) else '10,ms'}" for a, b in pairs]
    assert suspects(table("a,b,value,unit", *rows)) == ["path 0-1"]
    rows = [f"{a},{b},{'80,Gbps' if (a, b) == (0, 1) else '10,GB/s'}" for a, b in pairs]
    assert analyze(table("a,b,value,unit", *rows)).outcome == "healthy"
    rows = [f"{a},{b},{'80,gb/s' if (a, b) == (0, 1) else '10,GB/s'}" for a, b in pairs]
    refused(table("a,b,value,unit", *rows), "mixed_units", "line 2")


def test_a_cell_in_another_unit_than_its_column_is_refused() -> None:
    rows = [f"{rank},{'100 ms' if rank == 7 else '0.1 s'}" for rank in RANKS]
    refused(table("rank,step time", *rows), "mixed_units", "line 9, column 2")
    rows = [f"{rank},{'40 MB/s' if rank == 7 else '40 GB/s'}" for rank in RANKS]
    refused(table("rank,bw_GB/s", *rows), "mixed_units", "line 9, column 2")
    assert analyze(table("rank,step (ms)", *(f"{rank},100 ms" for rank in RANKS))).outcome == "healthy"


def test_two_equal_halves_are_no_health() -> None:
    rows = [f"{rank},{160 if rank > 3 else 100}" for rank in RANKS]
    assert codes(table("rank,step_ms", *rows)) == {"two_levels"}


def test_a_path_is_named_where_both_its_ends_are_fast_elsewhere() -> None:
    ring = [f"{rank},{(rank + 1) % 8},{12 if rank == 3 else 45}" for rank in RANKS]
    assert suspects(table("src,dst,GB/s", *ring)) == ["path 3-4"]
    # Two slow ones at one end are rather that end.
    ring = [f"{rank},{(rank + 1) % 8},{12 if rank in (3, 4) else 45}" for rank in RANKS]
    assert not [name for name in suspects(table("src,dst,GB/s", *ring)) if name.startswith("path")]


def test_repeats_of_a_rank_are_one_value() -> None:
    values = {str(rank): [200.0, 201.0, 90.0] if rank == 3 else [100.0, 101.0, 99.0] for rank in RANKS}
    assert suspects(json.dumps({"kind": "per_rank", "unit": "ms per step", "values": values})) == ["rank 3"]


def test_numbers_of_those_who_took_part_are_no_totals() -> None:
    runs = [{"src": 0, "dst": 8, "read": 50.0}, {"src": 1, "dst": 2, "read": 50.5}]
    assert analyze(json.dumps({"kind": "concurrent_runs", "unit": "GB/s", "values": runs})).outcome == "healthy"
