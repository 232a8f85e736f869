"""What a topology must not say. No I/O, and nothing but what stands in the document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.topology.errors import TopologyError

# Ordinals (3, cuda:3, GPU3) and PCI addresses count within their host; any other device id names one GPU for good.
_ORDINAL = re.compile(r"(?:([a-z]+):?)?(\d{1,4})", re.IGNORECASE)
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_PREFIXED = re.compile(r"((?:GPU|MIG)-).+", re.IGNORECASE)
_UUID = re.compile(
    r"(?:GPU|MIG)-[0-9a-f]+(?:-[0-9a-f]+)*|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)

_NAMES_SHOWN = 12


class Gpu(Protocol):
    """One GPU of a document, in whatever form."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def nic(self) -> str | None: ...
    @property
    def rail(self) -> str | None: ...
    @property
    def leaf(self) -> str | None: ...
    @property
    def rack(self) -> str | None: ...


class Written(NamedTuple):
    """A device id as all spellings of it are compared.

    Parameters
    ----------
    notation : str
        Ids of two notations, such as ``GPU0`` and ``cuda:0``, cannot be told to be the same GPU, nor to be others.
    text : str
        The same for every spelling: capitals, the width of a PCI address's domain, and a colon make no difference.
    number : int, optional
        Of an ordinal.
    """

    notation: str
    text: str
    number: int | None = None


def written(device: str) -> Written:
    """How a device id is written: ``00000000:3B:00.0`` as ``0000:3b:00.0``."""
    if ordinal := _ORDINAL.fullmatch(device):
        word, number = (ordinal[1] or "").lower(), int(ordinal[2])
        return Written(f"ordinal {word}", f"{word}{number}", number)
    if address := _PCI.fullmatch(device):
        return Written("pci", f"{int(address[1] or '0', 16):04x}:{address[2].lower()}")
    prefixed = _PREFIXED.fullmatch(device)
    text = device.lower() if _UUID.fullmatch(device) else device
    return Written(prefixed[1].lower() if prefixed else "other", text)


def is_global(device: str) -> bool:
    """Whether a device id names the same GPU on every host, such as ``GPU-1b2c...`` and unlike ``cuda:3``."""
    return not (_ORDINAL.fullmatch(device) or _PCI.fullmatch(device))


def identity(host: str, device: str) -> tuple[str, str]:
    """What a GPU is known by: its global id, or its number in its host."""
    return ("" if is_global(device) else host, written(device).text)


def check(gpus: Sequence[Gpu], parents: Mapping[str, str]) -> None:
    """Refuse a document that leaves out a rank, or names one twice, and what `check_places` refuses."""
    _every_rank_once(gpus)
    check_places(gpus, parents)


def check_places(gpus: Sequence[Gpu], parents: Mapping[str, str]) -> None:
    """Refuse what cannot be, of any ranks.

    A leaf may reach into several racks (rails and rows do); a host, a NIC and a GPU are in one place.

    Parameters
    ----------
    gpus : sequence of Gpu
        In the order of the document.
    parents : mapping of str to str
        The switch above a switch.

    Raises
    ------
    TopologyError
        Naming the field.
    """
    _devices_once(gpus)
    _one_place(gpus, "host", "rack", lambda gpu: gpu.host)
    for field in ("rail", "leaf"):
        _one_place(gpus, "NIC", field, lambda gpu: gpu.nic and f"{gpu.host}/{gpu.nic}")
    _tiers({gpu.leaf: None for gpu in gpus if gpu.leaf is not None}, parents)


def _every_rank_once(gpus: Sequence[Gpu]) -> None:
    seen: set[int] = set()
    for index, gpu in enumerate(gpus):
        if gpu.rank >= len(gpus) or gpu.rank in seen:
            message = f"gpus must name every rank from 0 to {len(gpus) - 1} exactly once"
            raise TopologyError(("gpus", index, "rank"), message)
        seen.add(gpu.rank)


def _devices_once(gpus: Sequence[Gpu]) -> None:
    seen: dict[tuple[str, str], Gpu] = {}
    for index, gpu in enumerate(gpus):
        if gpu.device is None:
            continue
        other = seen.setdefault(identity(gpu.host, gpu.device), gpu)
        if other is gpu:
            continue
        where = f"rank {other.rank} on {other.host} and rank {gpu.rank} on {gpu.host}"
        what = "a host has two GPUs" if other.host == gpu.host else "one GPU cannot be on two hosts"
        raise TopologyError(("gpus", index, "device"), f"{what}: device id {gpu.device!r} is {where}")


def _one_place(gpus: Sequence[Gpu], what: str, field: str, key: Callable[[Gpu], str | None]) -> None:
    """Refuse a thing that is stated to be at two places."""
    seen: dict[str, Gpu] = {}
    for index, gpu in enumerate(gpus):
        name, here = key(gpu), getattr(gpu, field)
        if name is None or here is None:
            continue
        other = seen.setdefault(name, gpu)
        if getattr(other, field) != here:
            raise TopologyError(
                ("gpus", index, field),
                f"{what} {name} has {field} {here!r} at rank {gpu.rank}"
                f" but {getattr(other, field)!r} at rank {other.rank}",
            )


def _tiers(leaves: Mapping[str, None], parents: Mapping[str, str]) -> None:
    """Refuse switches above themselves, and switches that no leaf leads to."""
    clean: set[str] = set()
    for switch in parents:
        _no_cycle(switch, parents, clean)
    reached: set[str] = set()
    for leaf in leaves:
        above: str | None = leaf
        while above is not None and above not in reached:
            reached.add(above)
            above = parents.get(above)
    for switch in parents:
        if switch not in reached:
            known = _shown(", ", list(leaves)) or "none"
            raise TopologyError(
                ("parents", switch), f"no GPU sits under switch {switch!r}; the leaves are: {known}"
            )


def _no_cycle(start: str, parents: Mapping[str, str], clean: set[str]) -> None:
    """Walk up from a switch; those that were passed join the clean ones."""
    walked: dict[str, None] = {}
    switch: str | None = start
    while switch is not None and switch not in clean:
        if switch in walked:
            names = list(walked)
            cycle = _shown(" -> ", [*names[names.index(switch) :], switch])
            raise TopologyError(("parents", switch), f"switches are above one another: {cycle}")
        walked[switch] = None
        switch = parents.get(switch)
    clean.update(walked)


def _shown(between: str, names: list[str]) -> str:
    return between.join(names if len(names) <= _NAMES_SHOWN else [*names[:_NAMES_SHOWN], "..."])
