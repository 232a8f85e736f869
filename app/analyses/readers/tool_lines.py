"""Line formats of tools: NIC loopback checks, link states, node checks, nccl-tests, iblinkinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.analyses.errors import UnreadableInput, at_line
from app.analyses.readers import deepep_lines, pair_lines
from app.analyses.readers.classes import hosts_of, nic_classes
from app.analyses.readers.lines import Line, split_lines
from app.analyses.readers.normalised_ports import LINK_LETTERS
from app.analyses.readers.numbers import label, number, positive
from app.analyses.records import (
    Label,
    LinkStates,
    PerRank,
    Reading,
    Rounds,
    Sweeps,
    Unjudged,
)

_NIC = re.compile(r"^\s*([\w.-]+)\s*:\s*([\w./-]+)\s*:\s*([\d.,]+)\s*$")
_NIC_LOW = re.compile(r"^\s*([\w.-]+)\s*:\s*([\w./-]+)\s*:\s*bandwidth is low ([\d.,]+)")
_GPU = re.compile(r"^\s*GPU (\d+):")
_LINK = re.compile(r"^\s*Link (\d+):\s*(<inactive>|[\d.]+ GB/s|\S+)")
_DCGM_GPU, _DCGM_LINKS = re.compile(r"^\s*gpuId (\d+):"), re.compile(r"^\s*([UDX_](\s+[UDX_])*)\s*$")
_ROUND = re.compile(r"[Rr]ound \d+|elapsed times? of (?:the )?nodes|nodes? elapsed times?")
_OF_TIME = re.compile(r"time|elapsed|second|node|took|check|duration|cost", re.IGNORECASE)
_TIME_OF_NODE = re.compile(r"\s*['\"]?(?=[\w.-]* ?\d)[\w.-]+(?: \d+)?['\"]?\s*:\s*[\d.+-]")
_NCCL_ROW = re.compile(
    r"(\d{1,15})\s+\d+\s+(?:float|half|bfloat16|int\w*|uint\w*|double|fp\w*)\s+\w+\s+(-?\d+\s+)?(\S.*)$"
)


def read_nic_check(text: str) -> Reading:
    """``host: nic: MB/s`` lines of a loopback bandwidth check."""
    values: dict[Label, float] = {}
    low: dict[Label, float] = {}
    for line in split_lines(text):
        for pattern, into in ((_NIC, values), (_NIC_LOW, low)):
            if match := pattern.match(line.text):
                name = f"{match[1]}:{match[2]}"
                if name in into:
                    raise UnreadableInput("named_twice", f"{name} stands there twice", at_line(line.number))
                into[name] = positive(number(match[3], at_line(line.number)), at_line(line.number))
    if not values:
        names = ", ".join(map(str, low)) or "none"
        text = f"only low values are listed ({names}), not those that they were compared with"
        return Reading("nic-check", Unjudged("no_reference", text))
    nics = list(values)
    record = PerRank(values, "low", classes=nic_classes(nics), hosts=hosts_of(nics, {}), metric="NIC bandwidth")
    return Reading("nic-check", record)


def read_nvlink(text: str) -> Reading:
    """``nvidia-smi nvlink --status``."""
    links: dict[Label, list[float | None]] = {}
    gpu = None
    for line in split_lines(text):
        if match := _GPU.match(line.text):
            gpu = f"gpu {match[1]}"
            if gpu in links:
                raise UnreadableInput("named_twice", f"{gpu} stands there twice", at_line(line.number))
            links[gpu] = []
        elif match := _LINK.match(line.text):
            if gpu is None:
                raise UnreadableInput("truncated", "a link before any GPU", at_line(line.number))
            if int(match[1]) != len(links[gpu]):
                raise UnreadableInput("truncated", f"link {len(links[gpu])} expected", at_line(line.number))
            state = match[2].split()[0]
            links[gpu].append(0.0 if state == "<inactive>" else number(state, at_line(line.number)))
    return Reading("nvidia-smi-nvlink", _some_links(links))


def read_dcgm_links(text: str) -> Reading:
    """``dcgmi nvlink --link-status``."""
    links: dict[Label, list[float | None]] = {}
    gpu = None
    for line in split_lines(text):
        if match := _DCGM_GPU.match(line.text):
            gpu = f"gpu {match[1]}"
        elif gpu is not None and (match := _DCGM_LINKS.match(line.text)):
            links[gpu] = [LINK_LETTERS[letter] for letter in match[1].split()]
            gpu = None
    return Reading("dcgm-nvlink", _some_links(links))


def _some_links(links: dict[Label, list[float | None]]) -> LinkStates:
    if not any(links.values()):
        raise UnreadableInput("no_values", "no GPU with a link stands in the text")
    return LinkStates(links)


def read_rounds_text(text: str) -> Reading:
    """``Round 0: ... {node: seconds, ...}`` among other lines; a clean last round ends the evidence.

    Raises
    ------
    UnreadableInput
        When a round is cut off, names a node twice, or has a time that is none; or when there is no round.
    """
    rounds: list[dict[Label, float]] = []
    for line in split_lines(text):
        body, place = _round_body(line.text), at_line(line.number)
        if body is None:
            if _is_cut(line.text):
                raise UnreadableInput("bad_number", "a round needs {node: seconds, ...} in one line", place)
            continue
        values: dict[Label, float] = {}
        for item in body.split(","):
            name, _, value = item.partition(":")
            node = label(name.strip().strip("'\""))
            if node in values:
                raise UnreadableInput("named_twice", f"node {node} stands there twice", place)
            values[node] = number(value, place)
        # Every node logs the round: the same times once more are no second round.
        if values not in rounds[-1:]:
            rounds.append(values)
    if not rounds:
        raise UnreadableInput("no_values", "no line has a round with {node: seconds, ...}")
    return Reading("node-check", Rounds(rounds))


def _round_body(text: str) -> str | None:
    """What stands in braces after what a node check calls its times."""
    start = _round_start(text)
    end = text.rfind("}")
    return text[start:end] if 0 < start < end else None


def _round_start(text: str) -> int:
    """Where the times of a round begin, behind the brace; 0 where none do: rounds of a training have scores."""
    match = _ROUND.search(text)
    start = text.find("{", match.end()) + 1 if match else 0
    if not match or not start or not _TIME_OF_NODE.match(text, start):
        return 0
    words = text[match.start() : start]
    return (
        start if _OF_TIME.search(words) or not re.search(r"[A-Za-z]", words[match.end() - match.start() :]) else 0
    )


def _is_cut(text: str) -> bool:
    return _round_start(text) > 0 and "}" not in text


def read_nccl_tests(text: str) -> Reading:
    """nccl-tests output: one curve of the whole collective."""
    curve = []
    for line in split_lines(text):
        if match := _NCCL_ROW.search(line.text):
            words = match[3].split()
            if len(words) >= 3 and re.fullmatch(r"[\d.]+", words[2]):
                curve.append((float(match[1]), number(words[2], at_line(line.number))))
    return Reading("nccl-tests", Sweeps({"all": curve}))


def unjudged(name: str, code: str, text: str) -> Reading:
    """A text that is known and names nobody."""
    return Reading(name, Unjudged(code, text))


def looks_like(lines: Sequence[Line]) -> str | None:
    """Name of the line format, if it is one of these."""
    checks = (
        ("deepep", deepep_lines.has_time),
        ("nic-check", lambda t: _NIC.match(t) or _NIC_LOW.match(t)),
        ("node-check", lambda t: _round_body(t) is not None),
        ("nvidia-smi-nvlink", _LINK.match),
        ("dcgm-nvlink", _DCGM_GPU.match),
        ("iblinkinfo", lambda t: "==(" in t),
        ("nccl-tests", lambda t: _NCCL_ROW.search(t) or (t.startswith("#") and "busbw" in t)),
    )
    for name, check in checks:
        if any(check(line.text) for line in lines[:200]):
            return name
    return "pairs-text" if pair_lines.starts_with_path(lines) else None
