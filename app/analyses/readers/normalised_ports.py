"""Ports and links in a normalised document."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from app.analyses.errors import UnreadableInput
from app.analyses.readers.classes import hosts_of, nic_classes
from app.analyses.readers.fields import Document, Shape, is_scalar, labels_once, scalar
from app.analyses.readers.numbers import bad_side, label, positive
from app.analyses.readers.port_states import STATES, is_state, read_states
from app.analyses.records import ErrorCounts, Label, LinkStates, PerRank, Record, Unjudged

ERRORS = re.compile(
    r"err|fail|discard|drop|crc|ber\b|replay|recover|symbol|down|flap|retr|timeout|bad|corrupt|violation"
    r"|out.?of.?(sequence|order)",
    re.IGNORECASE,
)
#: What a port counts because of what others send it.
_CAUSED = r"remote|relay|wait|pause|congest|(?<![a-z])(pfc|cnp|ecn)"
_SECOND_HAND = re.compile(rf"{_CAUSED}|discard", re.IGNORECASE)
_ONLY_CAUSED = re.compile(_CAUSED, re.IGNORECASE)
_BIT_ERRORS = re.compile(r"(^|[^a-z])ber([^a-z]|$)|bit.?error|error.?rate", re.IGNORECASE)
_TRAFFIC = re.compile(
    r"bytes|\bb/s|packets|frames|words|xmit|rcv_data|traffic|messages|utili[sz]|(?<![a-z])(sent|received|tx|rx)(?![a-z])",
    re.IGNORECASE,
)
_BIT_RATE = re.compile(r"[kmgt]i?b(it)?s?(/s|ps|\s*per\s*s)", re.IGNORECASE)
#: What a port could carry or how fast it is; "rate" and "time" are parts of other words, too.
_ABLE = re.compile(
    r"link|lane|speed|capacity|bandwidth|busbw|latency|(?<![a-z])(rates?|bw|time)(?![a-z])", re.IGNORECASE
)
#: Speeds of Ethernet and InfiniBand links, in Gbit/s: what only takes these is a setting, not traffic.
_NOMINAL = {1, 2.5, 5, 10, 14, 20, 25, 40, 50, 56, 100, 200, 400, 800, 1600}
_BITS = re.compile(r"\s*[Gg]b(it)?s?(/s(ec)?|ps)\s*")
_WHEN = re.compile(r"up.?time|timestamp|since|(?<![a-z])age(?![a-z])", re.IGNORECASE)
#: What DCGM prints for a link: down, up, disabled, not there.
LINK_LETTERS = {"D": 0.0, "U": 1.0, "X": None, "_": None}


def read_port_counters(document: Document) -> Record:
    """States, link rates, traffic, or counts of errors."""
    values = document.data["values"]
    if not isinstance(values, Mapping) or not values:
        raise Shape("values must name each port")
    if all(map(is_state, values.values())):
        return read_states({str(name): {"state": value} for name, value in values.items()})
    if all(map(is_scalar, values.values())):
        return _one_counter(document, values)
    if not all(isinstance(value, Mapping) for value in values.values()):
        raise Shape("each port must have one value or an object of values")
    if any(STATES & {str(key).lower() for key in value} for value in values.values()):
        return read_states({str(name): value for name, value in values.items()})
    if any("others" in value or "peer" in value for value in values.values()):
        return _error_runs(document, values)
    return _several_counters(values)


def _one_counter(document: Document, values: Mapping[str, Any]) -> Record:
    names = labels_once(list(values), "values")
    counts = {names[name]: scalar(value, f"values.{name}") for name, value in values.items()}
    unit = document.unit
    if _BIT_ERRORS.search(unit):
        return ErrorCounts([_uncensored(names, values, counts)], [None], log_scale=True)
    nobody = _names_nobody(unit, counts)
    if nobody is not None:
        return nobody
    if ERRORS.search(unit):
        return ErrorCounts([counts], [None])
    placed = {names[name]: host for name, host in document.placement(list(names)).items()}
    ports = list(counts)
    hosts = hosts_of(ports, placed)
    return PerRank(counts, document.bad(), classes=nic_classes(ports), hosts=hosts, metric=unit)


def _names_nobody(unit: str, counts: Mapping[Label, float]) -> Unjudged | None:
    """Why a counter says nothing about the port that counts it; None where it counts errors or is a speed."""
    if _WHEN.search(unit):
        return Unjudged("unsupported_unit", f"{unit!r} says when something happened, not how fast a port is")
    if _ONLY_CAUSED.search(unit):
        text = "a port counts these because of what others send it, or are too slow to take"
        return Unjudged("caused_by_others", text)
    if ERRORS.search(unit):
        return None
    if _is_traffic(unit, counts):
        text = "traffic shows what was sent where, not what a port could carry: an idle port is not a slow one"
        return Unjudged("traffic_not_capacity", text)
    if not _BIT_RATE.search(unit) and not _ABLE.search(unit) and bad_side(unit) != "high":
        text = f"{unit or 'a count without a unit'!r} is no rate, speed, latency, or count of errors"
        return Unjudged("unsupported_unit", text)
    return None


def _is_traffic(unit: str, counts: Mapping[Label, float]) -> bool:
    """Whether it was measured what ports carried: so where nothing says that they could not carry more."""
    if _TRAFFIC.search(unit):
        return True
    settings = _BITS.fullmatch(unit) and _NOMINAL.issuperset(counts.values())
    return bool(_BIT_RATE.search(unit)) and not _ABLE.search(unit) and not settings


def _uncensored(
    names: Mapping[str, Label], values: Mapping[str, Any], counts: dict[Label, float]
) -> dict[Label, float]:
    """Less than the least that is measured is as good as nothing."""
    hidden = {
        names[name] for name, value in values.items() if isinstance(value, str) and value.strip().startswith("<")
    }
    return {name: 0.0 if name in hidden else value for name, value in counts.items()}


def _error_runs(document: Document, values: Mapping[str, Any]) -> ErrorCounts:
    """``{run: {port: count, "others": count, "peer": name}}``."""
    runs: list[dict[Label, float]] = []
    peers: list[str | None] = []
    for name, fields in values.items():
        counts: dict[Label, float] = {}
        for key, value in fields.items():
            if key != "peer" and is_scalar(value):
                counts[_with_host(document, str(key))] = scalar(value, f"values.{name}.{key}")
        runs.append(counts)
        peer = fields.get("peer")
        peers.append(peer if isinstance(peer, str) else None)
    return ErrorCounts(runs, peers)


def _with_host(document: Document, port: str) -> Label:
    """Where two ends have NICs of like names, the host belongs to the name."""
    host = document.placement([port]).get(port)
    return f"{host}:{port}" if host and ":" not in port else label(port)


def _several_counters(values: Mapping[str, Any]) -> Record:
    """``{port: {counter: value}}``, or the other way round: the port's own error counters, added up."""
    if all(ERRORS.search(str(name)) for name in values):
        by_port: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, fields in values.items():
            for port, count in fields.items():
                by_port[port][name] = count
        values = dict(sorted(by_port.items()))
    counters = sorted({str(key) for fields in values.values() for key in fields})
    own = [c for c in counters if ERRORS.search(c) and not _SECOND_HAND.search(c) and not _BIT_ERRORS.search(c)]
    rates = [c for c in counters if _BIT_ERRORS.search(c)]
    if not own and not rates:
        raise Shape("no counter of errors among " + ", ".join(counters[:6]))
    chosen = frozenset(own or rates[:1])
    names = labels_once(list(values), "values")
    run: dict[Label, float] = {}
    for name, fields in values.items():
        counts = {
            counter: 0.0 if _censored(count) else scalar(count, f"values.{name}.{counter}")
            for counter, count in fields.items()
            if counter in chosen and is_scalar(count)
        }
        if counts:
            run[names[name]] = sum(counts.values())
    return ErrorCounts([run], [None], log_scale=not own)


def _censored(value: object) -> bool:
    return isinstance(value, str) and value.strip().startswith("<")


def read_link_state(document: Document) -> LinkStates | ErrorCounts:
    """``{gpu: [speed, null for inactive, ...]}``, letters U, D, X, _, or counts of errors."""
    values = document.data["values"]
    if not isinstance(values, Mapping) or not all(isinstance(links, list) for links in values.values()):
        raise Shape("links must be a list for each GPU")
    if not any(values.values()):
        raise UnreadableInput("no_values", "no GPU has a link", "values")
    if document.data.get("higher_is_worse") is True or ERRORS.search(document.unit):
        counts: dict[Label, float] = {
            f"{gpu} link {k}": scalar(count, f"values.{gpu}[{k}]")
            for gpu, links in values.items()
            for k, count in enumerate(links)
            if count is not None
        }
        return ErrorCounts([counts], [None], of_links=True)
    return LinkStates(
        {
            label(str(gpu)): [_link(link, f"values.{gpu}[{k}]") for k, link in enumerate(links)]
            for gpu, links in values.items()
        }
    )


def _link(value: object, place: str) -> float | None:
    if value is None or value is False:
        return 0.0
    if isinstance(value, str):
        word = value.strip().strip("<>").lower()
        if word.upper() in LINK_LETTERS:
            return LINK_LETTERS[word.upper()]
        if word in {"inactive", "down"}:
            return 0.0
        if word in {"active", "up"}:
            return 1.0
    if value is True:
        return 1.0
    speed = scalar(value, place)
    return positive(speed, place) if speed else 0.0
