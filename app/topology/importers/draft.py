"""What a parser found, before it is checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 8


@dataclass(frozen=True)
class Draft:
    """GPUs as a file names them.

    Parameters
    ----------
    gpus : sequence of dict
        As in the topology document, ranks included.
    where : sequence of tuple of int
        Line and column of each GPU.
    parents : mapping of str to str
        The switch above a switch.
    notes : sequence of str
        What the file leaves open, or what was left out.
    columns : mapping of str to int
        Of a table, the column of each field of a GPU.
    switches : mapping of str to tuple of int
        Line and column of each switch of ``parents``, where the file has them.
    """

    gpus: Sequence[Mapping[str, Any]]
    where: Sequence[tuple[int, int]]
    parents: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    columns: Mapping[str, int] = field(default_factory=dict)
    switches: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: Sequence[str | int]) -> tuple[int, int]:
        """Line and column of a field of the document; of the whole file where it has no place of its own."""
        match path:
            case ("gpus", int(index), *rest):
                line, column = self.where[index]
                return line, self.columns.get(str(rest[0]), column) if rest else column
            case ("parents", str(switch), *_):
                return self.switches.get(switch, (1, 1))
        return 1, 1


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """A GPU of one host, and the host's NICs in groups that are equally near, the nearest first."""

    device: str
    nics: Sequence[Sequence[str]]
    line: int
    column: int


def of_one_host(host: str, gpus: Sequence[LocalGpu]) -> Draft:
    """Number the GPUs of a host in their order, each with the one NIC that is nearer than all others.

    Where several are equally near none is stated: which of them a GPU's traffic leaves by is not in such a file.
    """
    found: list[dict[str, Any]] = []
    tied: dict[tuple[str, ...], list[str]] = {}
    for rank, gpu in enumerate(gpus):
        nearest = next((tuple(group) for group in gpu.nics if group), ())
        stated = {"nic": nearest[0]} if len(nearest) == 1 else {}
        found.append({"rank": rank, "host": host, "device": gpu.device, **stated})
        if len(nearest) > 1:
            tied.setdefault(nearest, []).append(gpu.device)
    notes = [
        f"{_listed(devices)}: {_listed(nics)} are equally near, so no NIC is stated; add it by hand"
        for nics, devices in tied.items()
    ]
    return Draft(found, [(gpu.line, gpu.column) for gpu in gpus], notes=notes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
