"""Ports that state whether they are up: fields of each port, and ``iblinkinfo``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers.fields import is_scalar, scalar
from app.analyses.readers.lines import split_lines
from app.analyses.readers.numbers import is_missing, label, number, positive
from app.analyses.records import Label, Ports, Reading

STATES = {"state", "operstate", "phys_state"}
_UP = re.compile(r"(port_)?active|(link_?)?up")
_WORD = re.compile(
    r"(\d+: ?)?((port_)?(active|down|init(ialize)?|armed)|(link_?)?up|polling|disabled|lowerlayerdown)",
    re.IGNORECASE,
)
#: Counts of the port's own trouble that stand beside its state.
_TROUBLE = re.compile(
    r"carrier_down|link_downed|flap|symbol_err|rcv_errors|local_link_integrity|link_error_recovery", re.IGNORECASE
)
_IB_NAME = re.compile(r"^CA: ?(.+?)(?: (HCA-\d+|mlx\S*))?:$")
_IB_SPEED = re.compile(r"(\d+)X\s+([\d.]+) Gbps")


def is_state(value: object) -> bool:
    """Whether a text is the state of a port."""
    return isinstance(value, str) and bool(_WORD.fullmatch(value.strip()))


def read_states(values: Mapping[str, Mapping[str, Any]]) -> Ports:
    """Ports with a ``state``, ``operstate`` or ``phys_state``, and perhaps rates, a link layer, counts of trouble.

    A port that somebody disabled is left out: it is off on purpose.

    Parameters
    ----------
    values : mapping of str to mapping
        Fields of each port; their names in capitals or not.

    Raises
    ------
    UnreadableInput
        When no port states whether it is up.
    """
    up: dict[Label, bool] = {}
    rate: dict[Label, float] = {}
    expected: dict[Label, float] = {}
    kind: dict[Label, str] = {}
    trouble: dict[str, dict[Label, float]] = defaultdict(dict)
    for name, given in values.items():
        port = label(name)
        fields = {str(key).lower(): value for key, value in given.items()}
        known = {key: _plain(fields[key]) for key in STATES & fields.keys() if not is_missing(str(fields[key]))}
        if "disabled" in known.values():
            continue
        if known:
            up[port] = _is_up(known)
        if not is_missing(str(fields.get("link_layer", ""))):
            kind[port] = str(fields["link_layer"])
        for key, value in fields.items():
            place = f"values.{name}.{key}"
            if key.startswith("rate") and is_scalar(value):
                rate[port] = positive(scalar(re.split(r"[ a-zA-Z]", str(value).strip())[0], place), place)
            elif key == "speed" and re.fullmatch(r"0*[1-9]\d{0,9}", str(value)):
                expected[port] = int(value) / 1000
            elif _TROUBLE.search(key) and is_scalar(value):
                trouble[key][port] = scalar(value, place)
    if not up:
        raise UnreadableInput("no_values", "no port states whether it is up", "values")
    return Ports(up, rate, expected, kind, trouble)


def _plain(state: object) -> str:
    return str(state).split(":")[-1].strip().lower()


def _is_up(known: Mapping[str, str]) -> bool:
    """``operstate`` may be unknown where a port is up; the physical state counts where nothing else is stated."""
    if "state" not in known and "operstate" not in known:
        return bool(_UP.match(known["phys_state"]))
    active = bool(_UP.match(known.get("state", "active")))
    return active and known.get("operstate", "up") not in {"down", "lowerlayerdown"}


@dataclass(frozen=True, slots=True)
class _IbPort:
    """A line below a channel adapter."""

    host: str
    adapter: str
    number: str
    rate: float | None
    """Gbit/s; None where it is down."""


def read_iblinkinfo(text: str) -> Reading:
    """``iblinkinfo``: the links of the channel adapters; switches' own nodes set no reference.

    A port that is down beside one of its adapter that is up is not cabled, and left out.

    Raises
    ------
    UnreadableInput
        When no adapter has a link.
    """
    found = _ib_ports(text)
    if not found:
        raise UnreadableInput("no_values", "no channel adapter (CA: host:) has a line with a link", "line 1")
    cabled = {(port.host, port.adapter) for port in found if port.rate is not None}
    found = [port for port in found if port.rate is not None or (port.host, port.adapter) not in cabled]
    of_host = Counter(port.host for port in found)
    of_adapter = Counter((port.host, port.adapter) for port in found)
    up: dict[Label, bool] = {}
    rate: dict[Label, float] = {}
    for port in found:
        name = port.host if of_host[port.host] == 1 else f"{port.host}:{port.adapter}"
        name += f"/{port.number}" if of_adapter[port.host, port.adapter] > 1 else ""
        if name in up:
            raise UnreadableInput("named_twice", f"{name} stands there twice", "line 1")
        up[name] = port.rate is not None
        if port.rate is not None:
            rate[name] = port.rate
    return Reading("iblinkinfo", Ports(up, rate, {}))


def _ib_ports(text: str) -> list[_IbPort]:
    found: list[_IbPort] = []
    adapter: tuple[str, str] | None = None
    for line in split_lines(text):
        if match := _IB_NAME.match(" ".join(line.words)):
            adapter = None if "aggregation" in match[1].lower() else (match[1], match[2] or "")
        elif line.text.lstrip().startswith("Switch:"):
            adapter = None
        elif adapter is not None and "==(" in line.text:
            before, _, inner = line.text.partition("==(")
            speed = _IB_SPEED.search(inner)
            up = speed is not None and "Down/" not in inner
            rate = (
                int(speed[1]) * positive(number(speed[2], at_line(line.number)), at_line(line.number))
                if up and speed
                else None
            )
            words = before.replace("[", " [").split()
            found.append(_IbPort(*adapter, words[2] if len(words) > 2 else "", rate))
    return found
