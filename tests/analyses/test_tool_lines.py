"""Lines that tools print: what is read together, what is kept apart, and what names nobody."""

from __future__ import annotations

import time

import pytest

from app.analyses import UnreadableInput, analyze
from tests.analyses.support import codes, named


def refused(text: str) -> tuple[str, str]:
    with pytest.raises(UnreadableInput) as caught:
        analyze(text)
    return caught.value.code, caught.value.place


def whole(times: dict[int, float]) -> str:
    line = "[rank {}] Dispatch + combine bandwidth: 90.1 GB/s, avg_t={} us, min_t=1.0 us, max_t=9.0 us\n"
    return "".join(line.format(rank, value) for rank, value in times.items())


def split(times: dict[int, float]) -> str:
    line = "[rank {}] Dispatch bandwidth: 90.1 GB/s, avg_t={} us | Combine bandwidth: 90.1 GB/s, avg_t=60.0 us\n"
    return "".join(line.format(rank, value) for rank, value in times.items())


ALIKE = dict.fromkeys(range(8), 114.0)


def test_dispatch_and_combine_together_are_judged_where_they_were_timed() -> None:
    text = "Allocating buffer size: 1880.1 MB ...\n" + whole(ALIKE) + split(ALIKE | {3: 300.0})
    answer = analyze(text + "[rank 0] Dispatch send/recv time: 17.00 + 8.88 us\n")
    assert (answer.format, answer.outcome) == ("deepep", "healthy")
    assert "series_left_out" in codes(answer)
    assert named(analyze(split(ALIKE) + whole(ALIKE | {3: 300.0}))) == [("gpu", (3,))]
    assert named(analyze(split(ALIKE | {3: 300.0}))) == [("gpu", (3,))]


def test_runs_of_a_deepep_test_are_one_only_where_all_ranks_have_all_of_them() -> None:
    answer = analyze(whole(ALIKE) + whole(ALIKE | {3: 300.0}) + whole(ALIKE))
    assert (answer.outcome, "repeats" in codes(answer)) == ("healthy", True)
    assert refused(whole(ALIKE) + split(ALIKE) + whole({3: 300.0})) == ("named_twice", "line 17")
