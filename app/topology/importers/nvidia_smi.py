"""``nvidia-smi topo -m``: the links between the GPUs and NICs of one host.

As the tool prints it or as people paste it: tabs, aligned or collapsed blanks, or a Markdown table; with NICs as
``NIC0`` and a legend, by name, or none; with or without the affinity columns, and with anything around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from app.topology.errors import ImportRefused
from app.topology.importers.draft import Draft, LocalGpu, of_one_host

# From near to far; SOC is what old drivers called SYS.
_DISTANCE = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_NVLINK = re.compile(r"NV\d+")
_GPU = re.compile(r"GPU\d+")
_LABEL = re.compile(r"(?:GPU|NIC)\d+")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
# Terminal colours, and what Markdown puts around a cell: blanks of the same width, so that columns stay.
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[|*`]")
_AFFINITIES = re.compile(r"(?:(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)(?: |$))+")


class _Token(NamedTuple):
    text: str
    line: int
    column: int

    def refuse(self, message: str) -> ImportRefused:
        return ImportRefused(message, self.line, self.column)

    def after(self) -> _Token:
        """Where the next one would have begun."""
        return _Token("", self.line, self.column + len(self.text) + 1)


def has_table(text: str) -> bool:
    """Whether some line is the header of such a table."""
    return any(_is_header(tokens) for tokens in _lines(text))


def parse(text: str, host: str) -> Draft:
    """GPUs of one host in the order of the table; NVLink and PCIe between GPUs are not part of a topology.

    Raises
    ------
    ImportRefused
        No table, a cut line, a row that is missing or stands twice, a link that is none or differs by direction,
        a second table, a legend without one of the NICs.
    """
    lines = _lines(text)
    start = next((index for index, tokens in enumerate(lines) if _is_header(tokens)), None)
    if start is None:
        raise ImportRefused("no line begins with GPU0 GPU1 ... as the table of `nvidia-smi topo -m` does", 1, 1)
    devices = _columns(lines[start])
    rows = _rows(lines[start + 1 :], devices)
    missing = [device for device in devices if device not in rows]
    for device in missing:
        if _GPU.fullmatch(device):
            last = next(tokens for tokens in reversed(lines) if tokens)[-1]
            raise last.refuse(f"the file ends without the row of {device}")
    _check_symmetry(devices, rows)
    names = _legend(text, devices)
    labels = [rows[device][0] for device in devices if _GPU.fullmatch(device)]
    groups = {label.text: _by_distance(rows[label.text], devices, names) for label in labels}
    gpus = [LocalGpu(label.text, groups[label.text], label.line, label.column) for label in labels]
    draft = of_one_host(host, gpus)
    notes = [f"the rows of {', '.join(missing)} are missing; the GPUs' rows say the same"] if missing else []
    return Draft(draft.gpus, draft.where, notes=[*draft.notes, *notes])


def _lines(text: str) -> list[list[_Token]]:
    """Words of every line."""
    return [
        [
            _Token(word.group(), number, word.start() + 1)
            for word in re.finditer(r"\S+", _DECORATION.sub(lambda found: " " * len(found.group()), line))
        ]
        for number, line in enumerate(text.split("\n"), 1)
    ]


def _is_link(word: str) -> bool:
    return word in _DISTANCE or word == "X" or _NVLINK.fullmatch(word) is not None


def _is_header(tokens: Sequence[_Token]) -> bool:
    """Whether the first GPU's name is followed by another name instead of by a link."""
    if len(tokens) < 2 or not _GPU.fullmatch(tokens[0].text) or _is_link(tokens[1].text):
        return False
    return tokens[1].text in {"CPU", "NUMA"} or any(character.isdigit() for character in tokens[1].text)


def _columns(tokens: Sequence[_Token]) -> list[str]:
    """GPUs and NICs of the header. Affinity columns, whose names are of two and three words, come last."""
    devices: list[str] = []
    for index, token in enumerate(tokens):
        if token.text in {"CPU", "NUMA", "GPU"}:
            rest = " ".join(word.text for word in tokens[index:])
            if _AFFINITIES.fullmatch(rest) is None:
                raise token.refuse(f"{rest!r} are no affinity columns: the header is cut or of another table")
            break
        if token.text in devices:
            raise token.refuse(f"{token.text} has two columns")
        devices.append(token.text)
    return devices


def _rows(lines: Sequence[Sequence[_Token]], devices: Sequence[str]) -> dict[str, list[_Token]]:
    """Label and links of each row; other lines are text around the table."""
    rows: dict[str, list[_Token]] = {}
    for tokens in lines:
        if not tokens:
            continue
        label = tokens[0]
        if _is_header(tokens):
            raise label.refuse("a second table begins here: one file describes one host")
        if label.text not in devices:
            if _LABEL.fullmatch(label.text):
                raise label.refuse(f"the header has no {label.text}")
            continue
        if label.text in rows:
            raise label.refuse(f"{label.text} has two rows")
        rows[label.text] = _row(tokens, devices)
    return rows


def _row(tokens: Sequence[_Token], devices: Sequence[str]) -> list[_Token]:
    """A row's label and links, checked."""
    label, cells = tokens[0], tokens[1 : 1 + len(devices)]
    for cell, device in zip(cells, devices, strict=False):
        if not _is_link(cell.text):
            raise cell.refuse(f"{cell.text!r} is no link: X, NV#, {', '.join(_DISTANCE)} are, or the line is cut")
        if (cell.text == "X") != (device == label.text):
            raise cell.refuse(f"X stands where a row meets its own column, and only there: {label.text}, {device}")
    if len(cells) < len(devices):
        cut = f"the row of {label.text} ends before {devices[len(cells)]}: the line is cut"
        raise tokens[-1].after().refuse(cut)
    for beyond in tokens[1 + len(devices) :]:  # affinities, with or without a header of their own
        if _is_link(beyond.text):
            raise beyond.refuse(f"the row of {label.text} has more links than the header has columns")
    return [label, *cells]


def _check_symmetry(devices: Sequence[str], rows: dict[str, list[_Token]]) -> None:
    column = {device: index for index, device in enumerate(devices, 1)}
    for label, row in rows.items():
        for device, cell in zip(devices, row[1:], strict=True):
            back = rows[device][column[label]] if device in rows else cell
            if back.text != cell.text:
                other = f"line {cell.line} says {cell.text} of {label} to {device}"
                raise back.refuse(f"{device} to {label} is {back.text}, but {other}")


def _legend(text: str, devices: Sequence[str]) -> dict[str, str]:
    """Names of the NICs that the table numbers; a NIC without a legend keeps its number."""
    found: dict[str, str] = {}
    last = 0
    for number, line in enumerate(text.split("\n"), 1):
        entry = _LEGEND.fullmatch(line)
        if entry:
            found[entry[1]], last = entry[2], number
    numbered = [device for device in devices if re.fullmatch(r"NIC\d+", device)]
    for device in numbered if found else []:
        if device not in found:
            raise ImportRefused(f"the legend does not name {device}: it is cut", last, 1)
    if len(set(found.values())) < len(found):
        raise ImportRefused("the legend gives two NICs one name", last, 1)
    return found


def _by_distance(row: Sequence[_Token], devices: Sequence[str], names: dict[str, str]) -> list[list[str]]:
    """The NICs in groups, the nearest first."""
    groups: dict[int, list[str]] = {}
    for device, cell in zip(devices, row[1:], strict=True):
        if not _GPU.fullmatch(device):
            groups.setdefault(_DISTANCE.get(cell.text, 0), []).append(names.get(device, device))
    return [groups[distance] for distance in sorted(groups)]
