"""What surrounds and dresses a paste, and tests of it that are no matrices."""

from __future__ import annotations

import pytest

from app.analyses import Topology, UnreadableInput, analyze
from app.localization.placement import Place


def names(text: str) -> list[str]:
    return [suspect.name for suspect in analyze(text).suspects]


def matrix(slow: int = 5, title: str = "P2P=Enabled Latency (P2P Writes) Matrix (us)") -> str:
    rows = [f"     {i} " + " ".join("9.00" if slow in {i, j} else "3.00" for j in range(8)) for i in range(8)]
    return "\n".join([title, "   GPU     0      1      2      3      4      5      6      7", *rows]) + "\n"


@pytest.mark.parametrize("dress", ["> {}", "[1,0]<stdout>:{}", "\x1b[32m{}\x1b[0m"])
def test_what_a_terminal_or_a_mail_adds_is_taken_off(dress: str) -> None:
    assert names("\n".join(dress.format(line) for line in matrix().splitlines())) == ["rank 5"]


def test_a_rule_below_the_header_is_no_row() -> None:
    title, header, *rows = matrix().splitlines()
    assert names("\n".join([title, header, "-" * 60, *rows])) == ["rank 5"]


def test_what_was_measured_first_over_the_host_names_no_path() -> None:
    text = matrix(slow=-1, title="P2P=Disabled Latency Matrix (us)")
    warm = text.replace("     0 3.00 3.00", "     0 3.00 9.00", 1)
    assert analyze(warm).outcome == "healthy"
    assert names(warm.replace("Disabled", "Enabled")) == ["path 0-1"]


ROW = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n   0 1 2 3 4 5 6 7\n 0 {}\n"


def test_one_row_is_what_each_gpu_exchanges_with_the_host() -> None:
    slow = ROW.format("55.1 55.2 55.1 27.4 55.0 55.1 55.3 55.1")
    assert names(slow) == ["rank 3"]
    assert names(slow + matrix(slow=-1, title="GPU(row) -> GPU(column) latency (us)")) == ["rank 3"]
    # GPUs of two sockets differ in that, which is no fault beside paths that are alike.
    halves = ROW.format("55.1 55.2 55.1 55.4 27.0 27.1 27.3 27.1")
    assert analyze(halves + matrix(slow=-1, title="GPU(row) -> GPU(column) latency (us)")).outcome == "healthy"
    assert analyze(halves).outcome == "inconclusive"


def test_rows_of_waits_need_no_rank() -> None:
    rows = [
        f"[ {' '.join('9000' if j == 2 and i != 2 else str(400 + i + j) for j in range(8))} ]" for i in range(8)
    ]
    assert names("Dispatch Wait Recv Cost Per Token Matrix[src_rank, dst_rank]:\n" + "\n".join(rows)) == ["rank 2"]
    with pytest.raises(UnreadableInput):
        analyze("\n".join(rows))
    assert [s.name for s in analyze("\n".join(rows), kind="deepxtrace").suspects] == ["rank 2"]


def test_a_topology_without_some_of_the_ranks_is_not_used_and_that_is_said() -> None:
    def reasons(ranks: int) -> dict[str, str]:
        topology = Topology({rank: Place(f"host-{rank // 4}") for rank in range(ranks)})
        return {reason.code: reason.text for reason in analyze(matrix(), topology=topology).reasons}

    assert "the topology has no rank 6, 7:" in reasons(6)["topology_not_used"]
    assert "no rank 1, 2, 3, 4, 5 and 2 more:" in reasons(1)["topology_not_used"]
    assert "topology_not_used" not in reasons(8)
