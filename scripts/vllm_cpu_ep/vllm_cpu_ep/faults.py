"""Injected faults: a JSON file, read again whenever it changes. Standard library only.

The file maps a component, in FaultSense's notation, to a delay::

    {"gpu:2": {"ms": 200, "above_rows": 2}, "path:1-3": {"ms": 30}, "path:0>2": {"ms_per_1000_rows": 5}}

``gpu:r`` delays rank r's part of a step, ``path:u-v`` the payload in both directions of a path, ``path:u>v``
in one. ``ms`` is a fixed delay, ``ms_per_1000_rows`` one proportional to the rows computed or sent; both may be
given. Neither applies unless there are more than ``above_rows`` rows, 0 by default. A GPU counts one row a
(token, expert) pair, a path one a token. In every step an idle rank computes a dummy token, ``top_k`` rows:
with that threshold a GPU is slow when it has real work, without it in every step of the engine.

Paths need the sparse all-to-all. A file that cannot be used leaves the last good faults in force and is logged
once; a missing file means no faults.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ENVIRONMENT_VARIABLE = "VLLM_CPU_EP_FAULTS"
MAX_FILE_BYTES = 64 * 1024
MAX_MS = 60_000.0

_COMPONENT = re.compile(r"gpu:(?P<gpu>\d{1,4})|path:(?P<u>\d{1,4})(?P<way>[->])(?P<v>\d{1,4})", re.ASCII)
_DELAYS = frozenset({"ms", "ms_per_1000_rows"})
_THRESHOLD = "above_rows"

logger = logging.getLogger(__name__)


class FaultFileError(ValueError):
    """The fault file is not what this module describes; the message names the entry."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A fixed delay and one proportional to the rows, both in force above a number of rows."""

    ms: float = 0.0
    ms_per_1000_rows: float = 0.0
    above_rows: int = 0

    def seconds(self, rows: int) -> float:
        """The delay of a message or computation of ``rows`` rows, at most 60 s."""
        if rows <= self.above_rows:
            return 0.0
        return min(MAX_MS, self.ms + self.ms_per_1000_rows * rows / 1000) / 1000


@dataclass(frozen=True, slots=True)
class Faults:
    """Delays by rank and by (sender, receiver)."""

    gpus: dict[int, Delay]
    paths: dict[tuple[int, int], Delay]

    def gpu_seconds(self, rank: int, rows: int) -> float:
        """How much later ``rank`` finishes computing ``rows`` rows."""
        delay = self.gpus.get(rank)
        return delay.seconds(rows) if delay else 0.0

    def path_seconds(self, sender: int, receiver: int, rows: int) -> float:
        """How much later ``rows`` rows from ``sender`` reach ``receiver``."""
        delay = self.paths.get((sender, receiver))
        return delay.seconds(rows) if delay else 0.0


NO_FAULTS = Faults({}, {})


def parse_faults(document: Any) -> Faults:
    """Validate a fault document.

    Raises
    ------
    FaultFileError
        Unknown component or field, a delay that is not a number from 0 to 60000 ms, or a path given twice.
    """
    if not isinstance(document, dict):
        raise FaultFileError("the document must map components to delays")
    gpus: dict[int, Delay] = {}
    paths: dict[tuple[int, int], Delay] = {}
    for name, entry in document.items():
        match = _COMPONENT.fullmatch(name)
        if match is None or (match["u"] is not None and int(match["u"]) == int(match["v"])):
            raise FaultFileError(f"{name[:40]!r}: write gpu:2, path:1-3 or path:1>3")
        delay = _parse_delay(name, entry)
        if match["gpu"] is not None:
            gpus[int(match["gpu"])] = delay
            continue
        u, v = int(match["u"]), int(match["v"])
        for direction in ((u, v), (v, u)) if match["way"] == "-" else ((u, v),):
            if direction in paths:
                raise FaultFileError(f"{name!r}: this direction has a delay already")
            paths[direction] = delay
    return Faults(gpus, paths)


def _parse_delay(name: str, entry: Any) -> Delay:
    if not isinstance(entry, dict) or not entry.keys() & _DELAYS or not entry.keys() <= {*_DELAYS, _THRESHOLD}:
        raise FaultFileError(f"{name!r}: give {' or '.join(sorted(_DELAYS))}, and {_THRESHOLD} if you like")
    for field, value in entry.items():
        number = isinstance(value, int if field == _THRESHOLD else (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= MAX_MS:
            raise FaultFileError(f"{name!r}: {field} must be a number from 0 to {MAX_MS:g}")
    return Delay(**entry)


class FaultFile:
    """A fault file that is read again when its identity, size or time of change differs.

    Parameters
    ----------
    path : Path or None
        The file; None means never any faults.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._faults = NO_FAULTS

    def current(self) -> Faults:
        """The faults in force now."""
        if self._path is None:
            return NO_FAULTS
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen, self._faults = None, NO_FAULTS
            return NO_FAULTS
        except OSError as error:
            logger.warning("fault file not readable, keeping the last faults: %s", error)
            return self._faults
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen != self._seen:
            self._seen = seen
            self._read()
        return self._faults

    def _read(self) -> None:
        assert self._path is not None
        try:
            with self._path.open("rb") as handle:
                content = handle.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise FaultFileError(f"larger than {MAX_FILE_BYTES} bytes")
            self._faults = parse_faults(json.loads(content))
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("fault file not usable, keeping the last faults: %s", error)
        else:
            logger.info("faults in force: %s", self._faults)


@cache
def fault_file() -> FaultFile:
    """The fault file of this process, named by ``VLLM_CPU_EP_FAULTS``."""
    name = os.environ.get(ENVIRONMENT_VARIABLE)
    return FaultFile(Path(name) if name else None)
