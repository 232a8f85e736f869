"""Numbers and labels as people paste them."""

from __future__ import annotations

import math
import re

from app.analyses.errors import UnreadableInput
from app.analyses.records import Bad, Label

#: Beyond these nothing is measured.
LARGEST, SMALLEST = 1e30, 1e-30
#: No number has more characters; what takes longer to read is none.
_LONGEST = 100
MISSING = {"", "-", "–", "—", "n/a", "na", "null", "none"}

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_UNIT = re.compile(r"\s*([KMGT]i?[Bb](ps|/s)?|[nuµμm]?s)$")
_RANK = re.compile(r"rank[ _=#:-]?(\d{1,6})", re.IGNORECASE)
_PER_TIME = r"(/\s?|\bper )(ns|us|µs|μs|ms|s|secs?|seconds?|minutes?|hours?)\b"
#: The slash of "latency / ms" divides a quantity from its unit.
_QUANTITY = re.compile(r"(latency|time|wait|elapsed|duration|delay)\s*/", re.IGNORECASE)
_LOW_IS_BAD = re.compile(
    rf"\b[kmgt]i?b(it)?(/s|ps)|[kmgt]bit|bandwidth|throughput|busbw|algbw|{_PER_TIME}|\b[kmgtp]flops\b"
    r"|\b(fps|iops|qps|rps|tps)\b",
    re.IGNORECASE,
)
# "min" alone is the least of something.
_HIGH_IS_BAD = re.compile(
    r"\b(ns|us|µs|μs|ms|s|sec|secs|seconds|mins|minutes)\b|[(\[]min[)\]]"
    r"|latency|time|wait|elapsed|duration|delay",
    re.IGNORECASE,
)
WAIT = re.compile(
    r"wait|idle|barrier|blocked|reduce_scatter|all_?reduce|allgather|all_?to_?all|recv|nccl|collective|communicat"
    r"|(?<![a-z])(comm|sync|a2a)(?![a-z])",
    re.IGNORECASE,
)
#: What was given to a rank, or when it was done: not how fast it was.
_LOAD = re.compile(
    r"\b(queued?|queue|queueing|running|pending|end(ed)?|finish(ed)?|memory|mem|kv|utili[sz]ation|occupancy"
    r"|iowait|await|(xmit|rcv) wait|wait (count|ticks))\b",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"\b(tokens?|requests?|samples?|items?|jobs?|experts?|[kmgt]i?b|bytes)\b", re.IGNORECASE)
_TIME = re.compile(r"\b(ns|us|µs|μs|ms|s|secs?|seconds?|minutes?|latency|time)\b", re.IGNORECASE)

_SUMMARY = re.compile(
    r"total|sum|avg|average|mean|median|min|max|minimum|maximum|std|stddev|stdev|p\d\d|all|overall|count",
    re.IGNORECASE,
)


def number(text: str, place: str) -> float:
    """A number with what people put around it: thousands separators, ``%``, bold marks, ``<`` for "less than".

    Raises
    ------
    UnreadableInput
        When it is none, not finite, or negative.
    """
    plain = text.strip()
    if len(plain) > _LONGEST:
        raise UnreadableInput("bad_number", f"{plain[:40]!r}... is longer than any number", place)
    plain = plain.strip("*`").replace("_", "").removeprefix("<").removesuffix("%").removesuffix("×").strip()
    plain = _UNIT.sub("", plain)
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    if not _NUMBER.fullmatch(plain):
        raise UnreadableInput("bad_number", f"{text.strip()[:40]!r} is no number", place)
    return checked(float(plain), place)


def checked(value: float, place: str) -> float:
    """A value that is finite and not negative."""
    if not math.isfinite(value):
        raise UnreadableInput("bad_number", "the value is not finite", place)
    if value > LARGEST:
        raise UnreadableInput("bad_number", f"{value:g} is no time, bandwidth or count", place)
    if value < 0:
        raise UnreadableInput("bad_number", f"{value:g} is negative; times and bandwidths are not", place)
    return value


def positive(value: float, place: str) -> float:
    """A value above zero."""
    if value < SMALLEST:
        raise UnreadableInput("bad_number", "a bandwidth or latency of zero is no measurement", place)
    return value


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value."""
    plain = text.strip().strip("*`").strip()
    return plain == "X" or plain.lower() in MISSING


def label(text: str) -> Label:
    """A rank as an integer where the text says so (``4``, ``rank 4``), else the name as it stands."""
    plain = text.strip().strip("*`")
    if plain.isascii() and plain.isdigit() and len(plain) <= 6:
        return int(plain)
    match = _RANK.fullmatch(plain)
    return int(match[1]) if match else plain


def is_wait(text: str) -> bool:
    """Whether a unit or title speaks of time spent waiting for others; a collective's bandwidth is no wait."""
    alone = re.search(r"\balone\b", text, re.IGNORECASE)
    return bool(WAIT.search(text)) and not alone and bad_side(text.replace("_", " ")) != "low"


def is_load(text: str) -> bool:
    """Whether a unit or title speaks of the work that a rank had, or of when it ended, not of its speed."""
    words = text.replace("_", " ")
    amount = bool(_AMOUNT.search(words)) and not _TIME.search(words) and bad_side(words) != "low"
    return amount or bool(_LOAD.search(words))


def is_summary(name: Label) -> bool:
    """Whether a row's name says that it sums up the others."""
    return isinstance(name, str) and bool(_SUMMARY.fullmatch(name.strip()))


def bad_side(unit: str) -> Bad | None:
    """Which values a unit or title makes bad; None when it does not say."""
    if _LOW_IS_BAD.search(_QUANTITY.sub("time ", unit)):
        return "low"
    return "high" if _HIGH_IS_BAD.search(unit) else None
