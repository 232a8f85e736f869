"""What can be slow: a GPU, a path between two GPUs, or what a group of GPUs shares.

A component is named by expert-parallel ranks, never by host names: names are untrusted input and change,
ranks are what a probe addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "path", "group"]

_NAME = re.compile(r"(?:gpu:(\d+)|path:(\d+)-(\d+)|group:(\d+(?:-\d+)+))", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """A GPU ``(r,)``, an undirected path ``(u, v)`` with ``u < v``, or what a group of GPUs shares.

    Parameters
    ----------
    kind : {"gpu", "path", "group"}
        What it is.
    members : tuple of int
        The ranks, ascending: one for a GPU, two for a path, at least two for a group.
    """

    kind: Kind
    members: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = {"gpu": len(self.members) == 1, "path": len(self.members) == 2, "group": len(self.members) > 1}
        if not fits[self.kind] or list(self.members) != sorted(set(self.members)):
            number = {"gpu": "one rank", "path": "2 ascending ranks", "group": "2 or more ascending ranks"}
            raise ValueError(f"a {self.kind} has {number[self.kind]}, got {self.members}")

    def __str__(self) -> str:
        return f"{self.kind}:{'-'.join(map(str, self.members))}"


def gpu(rank: int) -> Component:
    """The GPU at ``rank``."""
    return Component("gpu", (rank,))


def path(u: int, v: int) -> Component:
    """The undirected path between ranks ``u`` and ``v``."""
    return Component("path", (min(u, v), max(u, v)))


def group_of(ranks: Iterable[int]) -> Component:
    """What these ranks share; of one alone, the GPU."""
    members = tuple(sorted(ranks))
    return gpu(members[0]) if len(members) == 1 else Component("group", members)


def parse_component(text: str) -> Component:
    """Read ``gpu:5``, ``path:3-17`` or ``group:4-5-6-7``.

    Raises
    ------
    ValueError
        When the text is neither.
    """
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a component; write gpu:5, path:3-17 or group:4-5-6-7")
    if match[1] is not None:
        return gpu(int(match[1]))
    if match[4] is not None:
        return group_of(map(int, match[4].split("-")))
    if match[2] == match[3]:
        raise ValueError(f"{text!r}: a path needs two different ranks")
    return path(int(match[2]), int(match[3]))
