"""What can be slow: a GPU or a path between two GPUs.

A component is named by expert-parallel ranks, never by host names: names are untrusted input and change,
ranks are what a probe addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "path"]

_NAME = re.compile(r"(?:gpu:(\d+)|path:(\d+)-(\d+))", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """A GPU ``(r,)`` or an undirected path ``(u, v)`` with ``u < v``.

    Parameters
    ----------
    kind : {"gpu", "path"}
        What it is.
    members : tuple of int
        The ranks: one for a GPU, two ascending ones for a path.
    """

    kind: Kind
    members: tuple[int, ...]

    def __post_init__(self) -> None:
        expected = 1 if self.kind == "gpu" else 2
        if len(self.members) != expected or list(self.members) != sorted(set(self.members)):
            raise ValueError(f"a {self.kind} has {expected} ascending rank(s), got {self.members}")

    def __str__(self) -> str:
        return f"{self.kind}:{'-'.join(map(str, self.members))}"


def gpu(rank: int) -> Component:
    """The GPU at ``rank``."""
    return Component("gpu", (rank,))


def path(u: int, v: int) -> Component:
    """The undirected path between ranks ``u`` and ``v``."""
    return Component("path", (min(u, v), max(u, v)))


def parse_component(text: str) -> Component:
    """Read ``gpu:5`` or ``path:3-17``.

    Raises
    ------
    ValueError
        When the text is neither.
    """
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a component; write gpu:5 or path:3-17")
    if match[1] is not None:
        return gpu(int(match[1]))
    if match[2] == match[3]:
        raise ValueError(f"{text!r}: a path needs two different ranks")
    return path(int(match[2]), int(match[3]))
