"""Mooncake: what a transfer engine knows of one host, in its two formats.

Native (TENT): ``{"nics": [{"name"}], "mems": [{"name": "cuda:0", "device_list": {"rank0": [0], "rank1": [1]}}]}``,
where the lists hold numbers of NICs and a lower rank is nearer. Priority matrix: ``{"cuda:0": [["mlx5_0"],
["mlx5_1"]]}``, the preferred NICs and the others. Both also describe the host's own memory (``cpu:0``), which is
passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.topology.importers import json_text
from app.topology.importers.draft import Draft, LocalGpu, of_one_host
from app.topology.importers.json_text import Node

_LOCATION = re.compile(r"([a-z]+):(\d{1,4})")
_NEARNESS = re.compile(r"rank(\d{1,2})")
# What is not a GPU: memory of the host, and any memory.
_OTHER = re.compile(r"cpu:\d+|cpu|\*")


def parse_native(text: str, host: str) -> Draft:
    """GPUs of one host by number, from the native format.

    Raises
    ------
    ImportRefused
        A part that is missing or of another type, a number without a NIC, a GPU or NIC that stands twice, no GPU.
    """
    root = json_text.parse(text)
    nics = _once([_get(nic, "name") for nic in _get(root, "nics").elements("nics")])
    found: dict[int, LocalGpu] = {}
    for memory in _get(root, "mems").elements("mems"):
        name = _get(memory, "name")
        location = name.string("a memory's name")
        if _OTHER.fullmatch(location) is None:
            number = _number(name, location, found)
            address = memory.members("a memory").get("pci_bus_id")
            device = address.string("pci_bus_id") if address is not None and address.value else location
            found[number] = LocalGpu(device, _native_groups(memory, nics), *name.place)
    return _by_number(root, host, found)


def parse_matrix(text: str, host: str) -> Draft:
    """GPUs of one host by number, from a priority matrix.

    Raises
    ------
    ImportRefused
        An entry that is not ``[[preferred], [others]]``, a GPU that stands twice, a NIC that stands twice in one
        list, or no GPU.
    """
    root = json_text.parse(text)
    found: dict[int, LocalGpu] = {}
    for location, entry in root.members("a priority matrix").items():
        groups = _matrix_groups(location, entry)
        if _OTHER.fullmatch(location) is None:
            found[_number(entry, location, found)] = LocalGpu(location, groups, *entry.place)
    return _by_number(root, host, found)


def is_matrix(members: Mapping[str, Node]) -> bool:
    """Whether an object has only locations, as a priority matrix has."""
    return bool(members) and all(_LOCATION.fullmatch(name) or _OTHER.fullmatch(name) for name in members)


def _get(node: Node, key: str) -> Node:
    found = node.members(f"what holds {key!r}").get(key)
    if found is None:
        raise node.refuse(f"{key!r} is missing")
    return found


def _number(node: Node, location: str, found: Mapping[int, LocalGpu]) -> int:
    """The GPU's number; aliases such as hip:0 and rocm:0 are one GPU."""
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise node.refuse(f"{location!r} is no location: cuda:0 and cpu:0 are")
    number = int(match[2])
    if number in found:
        raise node.refuse(f"{location!r} is the second GPU {number}")
    return number


def _by_number(root: Node, host: str, found: Mapping[int, LocalGpu]) -> Draft:
    if not found:
        raise root.refuse("no GPU is in it: locations such as cuda:0 are GPUs, cpu:0 is memory of the host")
    return of_one_host(host, [found[number] for number in sorted(found)])


def _native_groups(memory: Node, nics: Sequence[str]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for key, numbers in _get(memory, "device_list").members("device_list").items():
        nearness = _NEARNESS.fullmatch(key)
        if nearness is None:
            raise numbers.refuse(f"{key!r} is no nearness: rank0, rank1, rank2 are")
        of_one = groups.setdefault(int(nearness[1]), [])
        for number in numbers.elements(key):
            name = _numbered(number, nics)
            if name in of_one:
                raise number.refuse(f"{name!r} stands twice in {key!r}")
            of_one.append(name)
    return [groups[nearness] for nearness in sorted(groups)]


def _numbered(number: Node, nics: Sequence[str]) -> str:
    if type(number.value) is not int or not 0 <= number.value < len(nics):
        raise number.refuse(f"{number.value!r} is no NIC of the file: it has {len(nics)}, from 0")
    return nics[number.value]


def _matrix_groups(name: str, entry: Node) -> list[list[str]]:
    groups = entry.elements(f"{name!r}")
    if len(groups) != 2:
        raise entry.refuse(f"{name!r} must be [[preferred NICs], [other NICs]]")
    return [_once(group.elements("a list of NICs")) for group in groups]


def _once(names: Sequence[Node]) -> list[str]:
    """Names of NICs; one that stands twice is another that was misspelt, so which are near is not known."""
    found: list[str] = []
    for name in names:
        nic = name.string("a NIC's name")
        if nic in found:
            raise name.refuse(f"the NIC {nic!r} stands twice in one list")
        found.append(nic)
    return found
