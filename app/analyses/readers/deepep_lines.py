"""Output of DeepEP's tests, both generations: the times of ranks, one series for each thing that was timed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.lines import split_lines
from app.analyses.readers.numbers import number, positive
from app.analyses.records import Label, PerRank, Reading, Reason

# What stands first on a line and what follows are looked for one after the other: one pattern with ".*?" between
# them would start anew at every place that looks like the first.
_FIRST, _FIRST_TIME = re.compile(r"\[rank (\d+)\]"), re.compile(r"avg_t\s*=\s*([\d.]+)\s*(us|ms)")
_SECOND = re.compile(r"EP:\s*(\d+)/(\d+)\s*\|([^:|]+):")
_SECOND_TIME = re.compile(r"(?<![\d.])([\d.]+) us")


@dataclass(frozen=True, slots=True)
class _Time:
    """A time, of which rank (of how many; 0 where that is not stated), what was timed, and the unit."""

    rank: int
    ranks: int
    series: str
    shown: str
    milli: bool


def has_time(text: str) -> bool:
    """Whether a line is one of DeepEP's with the time of a rank."""
    return _time(text) is not None


def read_deepep(text: str) -> Reading:
    """DeepEP test output: dispatch and combine timed together where that is there, else dispatch alone.

    Raises
    ------
    UnreadableInput
        When a rank stands more often than others in what is judged, or a time is none.
    """
    series: dict[str, dict[Label, list[float]]] = defaultdict(lambda: defaultdict(list))
    last: dict[str, int] = {}
    total = 0
    for line in split_lines(text):
        if (found := _time(line.text)) is None:
            continue
        place = at_line(line.number)
        time = positive(number(found.shown, place), place) * (1000 if found.milli else 1)
        series[found.series][found.rank].append(time)
        if len(series[found.series][found.rank]) > 1:
            last[found.series] = line.number
        total = max(total, found.ranks)
    if not series:
        raise UnreadableInput("no_values", "no rank with a time stands in the text")
    name = _judged(list(series))
    runs = _runs(series[name], last.get(name, 0))
    values = {rank: float(median(times)) for rank, times in series[name].items()}
    notes = [Reason("partial", f"{len(values)} of {total} ranks are listed")] if len(values) < total else []
    if runs > 1:
        notes.append(Reason("repeats", f"{name}: the median of {runs} runs"))
    if others := [other for other in series if other != name]:
        notes.append(Reason("series_left_out", f"not judged: {', '.join(others)}"))
    return Reading("deepep", PerRank(values, "high", metric=f"{name} time"), notes)


def _time(text: str) -> _Time | None:
    if (one := _FIRST.search(text)) and (time := _FIRST_TIME.search(text, one.end())):
        title = text[one.end() : time.start()].partition(":")[0]
        return _Time(int(one[1]), 0, _series(title), time[1], time[2] == "ms")
    two = _SECOND.search(text)
    if two and "dispatch" in two[3] and (time := _SECOND_TIME.search(text, two.end())):
        return _Time(int(two[1]), int(two[2]), _series(two[3]), time[1], False)
    return None


def _series(title: str) -> str:
    """What was timed, in its own words: ``dispatch + combine``."""
    words = title.lower().replace("bandwidth", " ").split()
    return " ".join(words)[:60] or "dispatch"


def _judged(series: Sequence[str]) -> str:
    """The whole way where it was timed: who waits in one half of it makes up for that in the other."""
    dispatch = [name for name in series if "dispatch" in name]
    whole = [name for name in dispatch if "combine" in name]
    return (whole or dispatch or series)[0]


def _runs(times: Mapping[Label, Sequence[float]], line: int) -> int:
    """How often each rank stands there.

    Raises
    ------
    UnreadableInput
        When some do more often than others: their times are of other runs, so not to be compared.
    """
    often = {len(found) for found in times.values()}
    if len(often) > 1:
        rank = max(times, key=lambda name: len(times[name]))
        text = f"rank {rank} stands there {max(often)} times, another rank {min(often)}: paste whole runs"
        raise UnreadableInput("named_twice", text, at_line(line))
    return often.pop()
