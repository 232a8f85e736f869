"""What is read from each format, and what is refused: always with a code and a place, never with a guess."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

from app.analyses import UnreadableInput, analyze
from app.analyses.detect import KINDS, MAX_CHARACTERS
from app.analyzing.topology import parse_topology
from tests.analyses.support import codes, healthy, named, slow_gpu

P2P = """Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2      3
     0 900.00  50.00  50.10  50.20
     1  50.10 900.00  50.00  50.10
     2  50.00  50.20 900.00  50.00
     3  50.10  50.00  50.10 900.00
"""
DEEPXTRACE = "\n".join(f"[t] rank={i} [{' '.join(str(100 + i + j) for j in range(4))}]" for i in range(4))
PAIRS = "rank_a,rank_b,value,unit\n0,1,50,GB/s\n2,3,50.5,GB/s\n4,5,51,GB/s\n"
RANKS = "rank,step_ms\n0,10\n1,10.1\n2,10.2\n3,21\n"


def refused(text: str, *, kind: str | None = None) -> tuple[str, str]:
    with pytest.raises(UnreadableInput) as caught:
        analyze(text, kind=kind)
    return caught.value.code, caught.value.place


def normalised(**fields: object) -> str:
    base: dict[str, object] = {"kind": "path_matrix", "unit": "us", "higher_is_worse": True}
    return json.dumps(base | fields)


def csv(values: list[list[object]], title: str = "us") -> str:
    head = ",".join([title, *map(str, range(len(values)))])
    return "\n".join([head, *(",".join(map(str, [i, *row])) for i, row in enumerate(values))])


FLAT = [[1, 10, 10, 10], [10, 1, 10, 10], [10, 10, 1, 10], [10, 10, 10, 1]]


@pytest.mark.parametrize(
    ("text", "name", "outcome"),
    [
        (P2P, "p2pBandwidthLatencyTest", "healthy"),
        (P2P.replace("900.00", "N/A   "), "p2pBandwidthLatencyTest", "healthy"),
        ("nvbandwidth Version: v0.8\n" + P2P, "nvbandwidth", "healthy"),
        (DEEPXTRACE, "deepxtrace", "healthy"),
        (re.sub(r"(?<=\d) (?=\d)", ", ", DEEPXTRACE), "deepxtrace", "healthy"),
        (csv(FLAT), "matrix-csv", "healthy"),  # type: ignore[arg-type]
        (csv(FLAT).replace(",", "\t"), "matrix-csv", "healthy"),  # type: ignore[arg-type]
        (PAIRS, "pairs-csv", "healthy"),
        (RANKS, "per-rank-table", "localized"),
        (
            "| Rank | Step (ms) |\n|---|--:|\n| 0 | **10** |\n| 1 | 10.1 |\n| 2 | 1,000.5 |\n| 3 | 10 |",
            "per-rank-table",
            "localized",
        ),
        (normalised(values=FLAT), "normalised:path_matrix", "healthy"),
        (
            normalised(kind="per_rank", values={"rank 0": 1, "rank 1": 1.02, "rank 2": 1}),
            "normalised:per_rank",
            "healthy",
        ),
        (normalised(kind="made_up", values=[]), "normalised:made_up", "inconclusive"),
        (normalised(kind="pair_list", values={"a": 1}), "normalised:pair_list", "inconclusive"),
    ],
)
def test_formats_are_told_apart(text: str, name: str, outcome: str) -> None:
    answer = analyze(text)
    assert (answer.format, answer.outcome) == (name, outcome)


def test_a_kind_outside_the_list_is_unsupported() -> None:
    assert codes(analyze(normalised(kind="made_up", values=[]))) == {"unsupported_kind"}
    assert codes(analyze("placement,busbw_GBps\none switch,40\ntwo,20\n")) == {"unsupported_kind"}


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", "unknown_format", ""),
        ("it is slow since Tuesday", "unknown_format", "line 1"),
        ("\x00\x01", "unknown_format", ""),
        (P2P.replace("  50.20 900.00  50.00", "  50.20 900.00"), "ragged_matrix", "line 5"),
        (P2P.replace("50.20 900.00", "-50.2 900.00"), "bad_number", "line 5, column 3"),
        (P2P.replace("50.20 900.00", "nan 900.00"), "bad_number", "line 5, column 3"),
        (P2P.replace("50.20 900.00", "0.00 900.00"), "bad_number", "the matrix at line 2, row 2, column 1"),
        (P2P.replace("50.20 900.00", "5o.20 900.00"), "bad_number", "line 5"),
        ("\n".join(P2P.splitlines()[:4]), "truncated", "line 4"),
        (P2P.replace("     3  50.10", "     2  50.10"), "named_twice", "line 6"),
        (P2P.replace(" Bandwidth (P2P Writes) Matrix (GB/s)", ""), "unit_missing", "line 2"),
        (DEEPXTRACE.replace("104]", "104"), "truncated", "line 2"),
        (DEEPXTRACE[: len(DEEPXTRACE) // 2], "truncated", "line 2"),
        (DEEPXTRACE.replace("rank=3", "rank=2"), "named_twice", "line 4"),
        (DEEPXTRACE.replace("106]", "x]"), "bad_number", "line 4, column 4"),
        ("rank=0 [5]", "too_few", "line 1"),
        (csv([[1, 2, 3], [2, 1, 3]]), "ragged_matrix", "line 2"),  # type: ignore[list-item]
        (csv(FLAT, ""), "unit_missing", "line 1"),  # type: ignore[arg-type]
        (csv(FLAT) + ",7", "ragged_matrix", "line 5"),  # type: ignore[arg-type]
        (csv(FLAT).replace("2,10,10", "2,10,inf"), "bad_number", "line 4, column 3"),  # type: ignore[arg-type]
        (PAIRS.replace("GB/s\n4", "us\n4"), "mixed_units", "line 3"),
        (PAIRS.replace(",unit", ",note"), "unit_missing", "line 2"),
        (PAIRS.replace("2,3,", "2,2,"), "bad_pair", "line 3"),
        (PAIRS.replace("50.5", "0"), "bad_number", "line 3"),
        (PAIRS.replace("50.5,GB/s", "50.5"), "ragged_table", "line 3"),
        (RANKS.replace("3,21", "2,21"), "named_twice", "line 5"),
        (RANKS.replace("step_ms", "step"), "unit_missing", "line 1"),
        (RANKS.replace("21", "fast"), "bad_number", "line 5, column 2"),
        ("rank,step_ms,Step_ms\n0,10,10\n1,10,10\n2,10,30\n3,10,10\n", "named_twice", "line 1"),
        ('{"kind": "path_matrix", "values": [[', "broken_json", "line 1, column 37"),
        ('{"values": []}', "missing_field", "kind"),
        (normalised(), "missing_field", "values"),
        (normalised(values=[[1, 2], [3]]), "ragged_matrix", "values[1]"),
        (normalised(values=[[1, "2"], [3, 1]]), "bad_number", "values[0][1]"),
        (normalised(values=[[1]]), "too_few", "values"),
        (normalised(values=[[1, -2], [3, 1]]), "bad_number", "values, row 0, column 1"),
        (normalised(values=[[1, 2], [3, 1]], unit="", higher_is_worse=None), "unit_missing", "unit"),
        ('{"kind": "per_rank", "unit": "s", "values": {"0": 1, "0": 2}}', "named_twice", "0"),
        (normalised(kind="per_rank", values={"0": 1, "rank 0": 2}), "named_twice", "values"),
        (normalised(kind="per_rank", values={"0": 1, "1": float("nan")}), "bad_number", "values.1"),
        ("GPU 0: x\n  Link 0: 25 GB/s\n  Link 2: 25 GB/s\n", "truncated", "line 3"),
        ("a,b 50\nc,d fast\n", "bad_number", "line 2"),
        ("nic,state\np0,\np1,-\n", "no_values", "values"),
        (normalised(kind="link_state", values={}), "no_values", "values"),
        (normalised(kind="link_state", unit="errors", values={"gpu 0": []}), "no_values", "values"),
    ],
)
def test_bad_input_is_refused_with_its_place(text: str, code: str, place: str) -> None:
    assert refused(text) == (code, place)


@pytest.mark.parametrize("kind", ["nvidia-smi-nvlink", "dcgm-nvlink"])
@pytest.mark.parametrize("text", ["it is slow since Tuesday", "GPU 0: x\n", "gpuId 0:\n"])
def test_a_text_without_links_says_nothing_about_links(kind: str, text: str) -> None:
    assert refused(text, kind=kind) == ("no_values", "")


def test_states_in_capitals() -> None:
    table = "NIC,State,Rate\nmlx5_0,ACTIVE,200\nmlx5_1,DOWN,200\nmlx5_2,ACTIVE,200\nmlx5_3,,200\n"
    assert named(analyze(table)) == [("gpu", ("mlx5_1",))]
    assert named(analyze(table.replace("DOWN", "ACTIVE").replace("1,ACTIVE,200", "1,ACTIVE,50"))) == [
        ("gpu", ("mlx5_1",))
    ]
    ports = {"p0": {"State": "active"}, "p1": {"State": "down", "link_errors": 0}, "p2": {"State": "active"}}
    assert named(analyze(normalised(kind="port_counters", unit="", values=ports))) == [("gpu", ("p1",))]


def test_a_column_that_is_called_pattern_makes_no_totals() -> None:
    rows = "\n".join(f"{rank},ring,{100 if rank == 3 else 10}" for rank in range(6))
    assert named(analyze(f"rank,pattern,latency_us\n{rows}\n")) == [("gpu", (3,))]
    totals = "Pattern,write GB/s\n" + "\n".join(f"{k} at once,55" for k in range(3)) + "\n"
    assert (analyze(totals).format, analyze(totals).outcome) == ("totals-table", "healthy")
    assert codes(analyze(totals.replace("Pattern", "traffic_pattern"))) == {"unsupported_kind"}


def test_counters_without_a_count_are_not_healthy() -> None:
    values = {"p0": {"symbol_error": None}, "p1": {"symbol_error": None}}
    answer = analyze(normalised(kind="port_counters", unit="counts", values=values))
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"too_few"})


def test_a_column_is_judged_only_where_the_unit_speaks_of_it() -> None:
    values = {str(rank): [1000 + 900 * (rank == 0), 10] for rank in range(6)}
    fields: dict[str, object] = {"kind": "per_rank", "unit": "ms", "values": values}
    answer = analyze(normalised(columns=["step", "p50"], **fields))
    assert (answer.outcome, codes(answer)) == ("inconclusive", {"unsupported_shape"})
    assert analyze(normalised(columns=["step", "p50 ms"], **fields)).outcome == "healthy"


def test_a_broken_matrix_of_the_same_paste_is_not_passed_over() -> None:
    second = P2P.replace("     2  50.00  50.20", "     2  50.00")
    assert refused(P2P + second) == ("ragged_matrix", "line 11")


def test_a_text_that_ends_within_its_last_row_is_judged_without_it_and_says_so() -> None:
    assert "row_cut" in codes(analyze(DEEPXTRACE[:-3]))
    answer = analyze(P2P.rstrip()[:-8])
    assert {"row_cut", "rows_missing"} <= codes(answer)
    assert answer.outcome == "healthy"


def test_a_whole_paste_of_the_latency_test() -> None:
    latency = """P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2      3
     0   1.90   2.10   2.12   2.11
     1   2.10   1.90   2.10   2.12
     2   2.11   2.10   1.90   2.10
     3   2.10   2.12   2.11   1.90

   CPU     0      1      2      3
     0   1.90   2.10   9.12   2.11
     1   2.10   1.90   9.10   2.12
     2   9.11   9.10   1.90   9.10
     3   2.10   2.12   9.11   1.90
"""
    text = f"""[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, made up, pciBusID: 7, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1

***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy procedure.

P2P Connectivity Matrix
     D\\D     0     1     2     3
     0\t     1     1     1     1
     1\t     1     1     1     1
     2\t     1     1     1     1
     3\t     1     1     1     1
{P2P}
{latency}
NOTE: The CUDA Samples are not meant for performance measurements.
"""
    answer = analyze(text)
    assert (answer.format, answer.outcome) == ("p2pBandwidthLatencyTest", "healthy")
    assert next(r.text for r in answer.reasons if r.code == "matrices_left_out").startswith("2 of 4")


def test_tests_of_one_row_beside_matrices_are_lists() -> None:
    vector = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1 2 3\n 0 55 55 20 55\nSUM x 185\n"
    local = "memcpy local GPU(column) bandwidth (GB/s)\n 0 1 2 3\n 0 900 900 900 900\nSUM y 3600\n"
    answer = analyze(f"nvbandwidth\n{vector}{local}{P2P}")
    assert [suspect.name for suspect in answer.suspects] == ["rank 2"]
    assert analyze(f"nvbandwidth\n{vector.replace('55 20', '55 54')}{local}{P2P}").outcome == "healthy"


def test_a_matrix_in_markdown_with_units_and_bold() -> None:
    rows = [
        f"| {i} | " + " | ".join("X" if i == j else "**55.1 GB/s**" for j in range(5)) + " |" for i in range(5)
    ]
    table = "\n".join(["| GPU | 0 | 1 | 2 | 3 | 4 |", "|---|---|---|---|---|---|", *rows])
    answer = analyze(f"Write bandwidth, GB/s\n\n{table}")
    assert (answer.format, answer.outcome) == ("matrix-csv", "healthy")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {
                "kind": "per_rank",
                "values": {"host-a": {"mlx5_0": 40, "mlx5_1": 40}, "host-b": {"mlx5_0": 19, "mlx5_1": 41}},
            },
            [("gpu", ("host-b:mlx5_0",))],
        ),
        (
            {"kind": "per_rank", "values": {"rank 0": 40.0, "rank 1": 0, "rank 2": 41, "rank 3": 40}},
            [("gpu", (1,))],
        ),
        (
            {
                "kind": "per_rank",
                "values": {f"r{i}": 20 if i in {4, 5} else 40 for i in range(8)},
                "placement": {f"r{i}": f"h{i // 2}" for i in range(8)},
            },
            [("group", ("r4", "r5"))],
        ),
        (
            {
                "kind": "collective_sweep",
                "values": {c: [[1024, 40 - 20 * (c == "3 hosts")]] for c in ("1 host", "2 hosts", "3 hosts")},
            },
            [],
        ),
        (
            {"kind": "port_counters", "unit": "raw_ber", "values": {"p0": "<1e-15", "p1": "2e-8", "p2": "<1e-15"}},
            [("gpu", ("p1",))],
        ),
        (
            {
                "kind": "port_counters",
                "unit": "counts",
                "values": {"symbol_error": {"p0": 0, "p1": 9000}, "link_downed": {"p0": 0, "p1": 3}},
            },
            [("gpu", ("p1",))],
        ),
        ({"kind": "port_counters", "unit": "bytes", "values": {"p0": 9e9, "p1": 1e3, "p2": 9e9}}, []),
        (
            {"kind": "link_state", "unit": "replay errors", "values": {"gpu 0": [0, 0, 0], "gpu 1": [0, 500, 0]}},
            [("path", ("gpu 1 link 1",))],
        ),
        (
            {
                "kind": "rounds",
                "unit": "s",
                "higher_is_worse": True,
                "values": {
                    "first": {"0": 9, "1": 9, "2": 2, "3": 2},
                    "second": {"0": 2, "1": 9, "2": 2, "3": 2},
                    "after repair": {"0": 2, "1": 2, "2": 2, "3": 2},
                },
            },
            [("gpu", (1,))],
        ),
    ],
)
def test_other_shapes_of_a_normalised_document(fields: dict[str, object], wanted: list[object]) -> None:
    answer = analyze(normalised(**{"unit": "GB/s", "higher_is_worse": False} | fields))
    assert named(answer) == wanted
    json.dumps(answer.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("value", "columns"), [("50 ms", ["t_ms"]), (50, ["t_ms"]), ([50], ["t_ms"])])
def test_one_column_may_stand_without_brackets(value: object, columns: list[str]) -> None:
    values = {str(rank): value for rank in range(4)} | {"9": [110]}
    answer = analyze(normalised(kind="per_rank", unit="ms", columns=columns, values=values))
    assert [(s.members, s.slowdown) for s in answer.suspects] == [([9], 2.2)]


def test_only_matrices_of_the_peer_path_are_judged() -> None:
    disabled = P2P.replace("Enabled", "Disabled").replace("50.", "5.")
    answer = analyze(disabled + P2P)
    assert answer.outcome == "healthy"
    assert "matrices_left_out" in codes(answer)


def test_a_row_may_be_missing_at_the_end_but_not_a_part_of_one() -> None:
    assert "rows_missing" in codes(analyze("\n".join(P2P.splitlines()[:-1])))


def test_a_named_kind_says_what_a_bare_matrix_measures() -> None:
    logs = slow_gpu(healthy(8, 0.03, 1)[0], 5)
    text = "\n".join(",".join(f"{x:.3f}" for x in row) for row in np.exp(logs))
    assert refused(text) == ("unit_missing", "line 1")
    assert named(analyze(text, kind="latency-matrix")) == [("gpu", (5,))]
    assert named(analyze(text, kind="bandwidth-matrix")) == []
    assert refused(text, kind="made-up") == ("unknown_kind", "kind")
    assert "latency-matrix" in KINDS


def test_a_topology_tells_hosts() -> None:
    steep, _ = healthy(8, 0.02, 4, 2, 7.0)
    text = "\n".join(
        [
            "us," + ",".join(map(str, range(8))),
            *(f"{i}," + ",".join(f"{x:.3f}" for x in row) for i, row in enumerate(np.exp(steep))),
        ]
    )
    hosts = [{"rank": i, "host": f"host-{i // 4}", "nic": "n"} for i in range(8)]
    assert analyze(text).outcome == "inconclusive"
    assert analyze(text, topology=parse_topology(json.dumps(hosts))).outcome == "healthy"
    assert analyze(text, topology=parse_topology(json.dumps({"gpus": hosts}))).outcome == "healthy"


def test_sizes() -> None:
    header = "us," + ",".join(map(str, range(4096)))
    assert refused(header + "\n" + "\n".join(f"{i}," + "1," * 4095 + "1" for i in range(4096)))[0] == "too_large"
    assert refused("x" * (MAX_CHARACTERS + 1)) == ("too_large", "")
    assert refused(normalised(values=[[1.0] * 1025] * 1025)) == ("too_large", "values")
    assert refused("{" * 100_000)[0] == "broken_json"
    assert refused('{"a":' * 100_000)[0] == "broken_json"


def test_512_ranks_take_no_longer_than_two_seconds() -> None:
    logs = slow_gpu(healthy(512, 0.08, 2, 64, 7.0)[0], 7)
    text = "us," + ",".join(map(str, range(512))) + "\n"
    text += "\n".join(f"{i}," + ",".join(f"{x:.3f}" for x in row) for i, row in enumerate(np.exp(logs)))
    started = time.process_time()
    assert named(analyze(text)) == [("gpu", (7,))]
    assert time.process_time() - started <= 2
