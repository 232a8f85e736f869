"""Reads snapshots of port counters: JSON, lines of sysfs files, or Prometheus text."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.selection.counters import SIDES, Direction, Port, Side, Snapshot, check_unit
from app.selection.documents import load
from app.selection.errors import CountersError

_SIDE_NAMES: Mapping[str, Side] = {"source": "source", "local": "source", "target": "target", "remote": "target"}
_SIDE_LABELS = ("side", "role", "instance", "host", "hostname", "node", "nodename")
_DIRECTION_NAMES: tuple[tuple[Direction, re.Pattern[str]], ...] = (
    ("transmit", re.compile(r"port_(xmit_data|data_transmitted_bytes|transmit_data)(_64|_bytes)?(_total)?$")),
    ("receive", re.compile(r"port_(rcv_data|data_received_bytes|receive_data)(_64|_bytes)?(_total)?$")),
)
# Of a row without blanks at its ends. The path is atomic: where no value follows it, another is not looked for in
# the rest, so that a row costs time in proportion to its length.
_SYSFS = re.compile(
    r"^(?>(?P<before>\S*?)/?infiniband/(?P<device>[^/\s]+)/ports/(?P<port>\d+)/(?:hw_)?counters(?:_ext)?/(?P<name>\w+))"
    r"(?:\s*[:=]\s*|\s+|$)(?P<value>\S*)$"
)
_HEADING = re.compile(r"^#?\s*\[?(source|target|local|remote)\]?\s*:?$", re.IGNORECASE)
_DEVICE_PORT = re.compile(r"^(?P<device>.+?)[/:](?P<port>\d+)$")
_NOTHING = {"", "-", "n/a", "none", "null", "nan"}
DEFAULT_PORT = "1"
_ABOUT = ("taken_at", "unit")
MAX_COUNT = 2**64
MAX_DIGITS = 24
MAX_NAME = 200
MAX_TIME = 2**34  # seconds since 1970: a number above it is in other units


class _Found:
    """What a snapshot has named so far."""

    def __init__(self) -> None:
        self.ports: dict[Port, dict[Direction, int | None]] = {}

    def port(self, port: Port, line: int | None = None) -> dict[Direction, int | None]:
        """Name a port; what is known of it."""
        for name in port[1:]:
            if not name or not name.isprintable() or len(name) > MAX_NAME:
                raise CountersError(f"{name[:80]!r} is no name of a device or port", line=line, field=port[0])
        return self.ports.setdefault(port, {})

    def put(self, port: Port, name: str, value: object, line: int | None = None) -> None:
        """Take in one counter; those of other names only name the port."""
        known = self.port(port, line)
        direction = next((way for way, pattern in _DIRECTION_NAMES if pattern.search(name)), None)
        if direction is None:
            return
        field = ".".join((*port, name))
        if direction in known:
            raise CountersError(f"{direction} counter stands twice", line=line, field=field)
        known[direction] = _count(value, line, field)


def read_counters(text: str) -> Snapshot:
    """Read one snapshot of both sides.

    Raises
    ------
    CountersError
        Naming line or field: no JSON, sysfs or Prometheus text, a side that is not said, a counter that stands
        twice, is negative, has a fraction or exceeds 64 bits, or no port at all.
    """
    found = _Found()
    root: Any = None
    start = text.lstrip()
    if start[:1] in {"{", "["} and not _HEADING.match(start.split("\n", 1)[0].strip()):
        root = load(text, CountersError)
        _read_json(root, found)
    else:
        _read_text(text, None, found)
    if not found.ports:
        raise CountersError("names no port; port_xmit_data and port_rcv_data of the source and target are wanted")
    about = root if isinstance(root, dict) else {}
    unit = about.get("unit")
    return Snapshot(found.ports, _time(about.get("taken_at")), None if unit is None else check_unit(str(unit)))


def _read_json(root: Any, found: _Found) -> None:
    if isinstance(root, list):
        _read_rows(root, None, found)
        return
    for key, value in root.items():
        if key == "ports":
            _read_rows(value, None, found)
        elif key.lower() in _SIDE_NAMES:
            _read_side(_SIDE_NAMES[key.lower()], value, found)
        elif key not in _ABOUT:
            raise CountersError(f"is none of source, target, ports, {', '.join(_ABOUT)}", field=key[:80])


def _read_side(side: Side, value: Any, found: _Found) -> None:
    if isinstance(value, str):
        _read_text(value, side, found)
    elif isinstance(value, list):
        _read_rows(value, side, found)
    elif isinstance(value, dict):
        for device, counters in value.items():
            _read_device(side, device, counters, found)
    else:
        raise CountersError("must be an object of devices, a list of ports, or text", field=side)


def _read_device(side: Side, device: str, value: Any, found: _Found) -> None:
    named = _DEVICE_PORT.match(device)
    if named:
        _read_port((side, named["device"], named["port"]), value, found)
        return
    if not isinstance(value, dict):
        raise CountersError("must be an object of counters, or of ports", field=f"{side}.{device}")
    ports = value.get("ports", value)
    if isinstance(ports, dict) and ports and all(key.isdigit() for key in ports):
        for port, counters in ports.items():
            _read_port((side, device, port), counters, found)
    else:
        _read_port((side, device, DEFAULT_PORT), ports, found)


def _read_port(port: Port, value: Any, found: _Found) -> None:
    if value is not None and not isinstance(value, dict):
        raise CountersError("must be an object of counters", field=".".join(port))
    counters = value or {}
    inner = counters.get("counters", counters)
    if not isinstance(inner, dict):
        raise CountersError("must be an object of counters", field=".".join((*port, "counters")))
    found.port(port)
    for name, count in inner.items():
        found.put(port, name, count)


def _read_rows(rows: Any, side: Side | None, found: _Found) -> None:
    if not isinstance(rows, list):
        raise CountersError("must be a list of ports", field="ports")
    for place, row in enumerate(rows):
        field = f"ports.{place}"
        if not isinstance(row, dict) or not isinstance(row.get("device"), str):
            raise CountersError("must be an object with side, device, port and counters", field=field)
        where = side or _side_of({str(key): str(value) for key, value in row.items()}, None, field)
        _read_port((where, row["device"], str(row.get("port", DEFAULT_PORT))), row, found)


def _read_text(text: str, side: Side | None, found: _Found) -> None:
    """Lines of sysfs files or Prometheus text; a line ``# source`` or ``[target]`` says whose what follows is."""
    where = side
    for line, row in enumerate(text.split("\n"), start=1):
        stripped = row.strip()
        heading = _HEADING.match(stripped)
        if heading:
            where = _SIDE_NAMES[heading[1].lower()]
        elif stripped and not stripped.startswith("#"):
            _read_line(stripped, line, where, found)


def _read_line(row: str, line: int, side: Side | None, found: _Found) -> None:
    sysfs = _SYSFS.match(row)
    if sysfs:
        before = sysfs["before"].split(":")[0].split("/")[0].lower()
        where = side or _side_of({"side": before}, line, None)
        found.put((where, sysfs["device"], sysfs["port"]), sysfs["name"], sysfs["value"], line)
        return
    try:
        samples = [s for family in text_string_to_metric_families(row) for s in family.samples]
    except (ValueError, IndexError, KeyError) as wrong:
        raise CountersError(f"neither a sysfs counter nor Prometheus text: {wrong}", line=line) from None
    for sample in samples:
        if not any(pattern.search(sample.name) for _, pattern in _DIRECTION_NAMES):
            continue
        device = sample.labels.get("device") or sample.labels.get("hca") or sample.labels.get("ca")
        if not device:
            raise CountersError("has no label device", line=line, field=sample.name)
        where = side or _side_of(sample.labels, line, sample.name)
        found.put((where, device, sample.labels.get("port", DEFAULT_PORT)), sample.name, sample.value, line)


def _side_of(labels: Mapping[str, str], line: int | None, field: str | None) -> Side:
    for label in _SIDE_LABELS:
        side = _SIDE_NAMES.get(labels.get(label, "").split(":")[0].lower())
        if side:
            return side
    raise CountersError(
        f"whose it is is not said: side must be {' or '.join(SIDES)}", line=line, field=field or "side"
    )


def _count(value: object, line: int | None, field: str) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if isinstance(value, str):
        number: int | float | None = int(value) if value.strip().isdecimal() and len(value) <= MAX_DIGITS else None
    else:
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(number, float) and math.isnan(number):
        return None
    if number is None or number != number // 1 or not 0 <= number <= MAX_COUNT:
        raise CountersError(
            f"must be a whole number of at most 64 bits, not {str(value)[:80]!r}", line=line, field=field
        )
    return min(int(number), MAX_COUNT - 1)


def _time(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_TIME:
        return float(value)
    try:
        read = dt.datetime.fromisoformat(str(value))
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise CountersError("must be seconds since 1970 or ISO 8601 with a time zone", field="taken_at")
    return read.timestamp()
