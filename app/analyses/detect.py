"""Which format a text is, and its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from app.analyses.errors import UnreadableInput
from app.analyses.readers import tool_lines as tools
from app.analyses.readers.deepep_lines import read_deepep
from app.analyses.readers.lines import Line, split_lines
from app.analyses.readers.matrix_text import has_blocks, is_deepxtrace, read_blocks, read_deepxtrace
from app.analyses.readers.normalised import read_normalised
from app.analyses.readers.pair_lines import read_pair_lines
from app.analyses.readers.port_states import read_iblinkinfo
from app.analyses.readers.tables import read_table
from app.analyses.records import Bad, Reading

#: The longest text that is analysed: 1024 x 1024 cells of 30 characters.
MAX_CHARACTERS = 32 * 2**20

_TOPOLOGY = "a topology alone measures nothing"
_LOAD = "counts and logs of an engine show how load was spread, not who is slow"

_BY_NAME: dict[str, Callable[[str], Reading]] = {
    "normalised": read_normalised,
    "deepxtrace": read_deepxtrace,
    "p2pBandwidthLatencyTest": read_blocks,
    "nvbandwidth": read_blocks,
    "table": read_table,
    "latency-matrix": lambda text: _matrix(text, "high"),
    "bandwidth-matrix": lambda text: _matrix(text, "low"),
    "pairs-text": read_pair_lines,
    "nic-check": tools.read_nic_check,
    "deepep": read_deepep,
    "nvidia-smi-nvlink": tools.read_nvlink,
    "dcgm-nvlink": tools.read_dcgm_links,
    "node-check": tools.read_rounds_text,
    "iblinkinfo": read_iblinkinfo,
    "nccl-tests": tools.read_nccl_tests,
}
#: Formats that `read` takes by name.
KINDS = tuple(_BY_NAME)


def read(text: str, kind: str | None = None) -> Reading:
    """Read a text in the named format, or in the one that it shows.

    Raises
    ------
    UnreadableInput
        When it is too long, of no known format, or damaged.
    """
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInput("too_large", f"{len(text)} characters; at most {MAX_CHARACTERS} are analysed")
    if "\x00" in text:
        raise UnreadableInput("unknown_format", "the input is no text")
    if kind is not None:
        if kind not in _BY_NAME:
            raise UnreadableInput("unknown_kind", f"{kind!r} is none of {', '.join(KINDS)}", "kind")
        return _BY_NAME[kind](text)
    return _detected(text)


def _matrix(text: str, bad: Bad) -> Reading:
    """A matrix without a unit, of which the caller knows what it measures."""
    return read_table(text, bad) if _is_table(split_lines(text)) else read_blocks(text, bad)


def _detected(text: str) -> Reading:
    if text.lstrip().startswith("{"):
        return read_normalised(text)
    lines = split_lines(text)
    if not lines:
        raise UnreadableInput("unknown_format", "the input is empty")
    name = "deepxtrace" if is_deepxtrace(lines) else tools.looks_like(lines)
    if name is not None:
        return _BY_NAME[name](text)
    if _is_topology(lines):
        return tools.unjudged("nvidia-smi-topo", "unsupported_kind", _TOPOLOGY)
    if any(re.match(r"vllm:|sglang:|INFO .*Engine \d+:", line.text) for line in lines):
        return tools.unjudged("engine", "unsupported_kind", _LOAD)
    if _is_table(lines):
        return read_table(text)
    if has_blocks(lines):
        return read_blocks(text)
    known = ", ".join(KINDS)
    raise UnreadableInput(
        "unknown_format", f"the text is in no known format ({known}); name it with kind", "line 1"
    )


def _is_topology(lines: Sequence[Line]) -> bool:
    return lines[0].text.split()[:1] == ["GPU0"] and any(
        " X " in f" {line.text} ".replace("\t", " ") for line in lines
    )


def _is_table(lines: Sequence[Line]) -> bool:
    """Nearly every line has the separator of the first."""
    body = [line.text for line in lines if not line.text.lstrip().startswith("#")]
    if sum(text.count("|") >= 2 for text in body) >= max(2, len(body) / 2):
        return True
    return any(
        body and body[0].count(mark) and sum(mark in text for text in body) >= 0.9 * len(body) for mark in ",;\t"
    )
