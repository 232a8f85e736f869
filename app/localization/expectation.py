"""What a right verdict names, given what was injected; for the demo and the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.localization.components import Component, group_of, parse_component
from app.localization.faults import Fault
from app.localization.placement import Placement, SharedPart

# Reasons that say which part of the named GPUs it is; a NIC of one GPU alone is its link.
SAID_AS = {
    "nic": {"nic", "links"},
    "host": {"uplink"},
    "fabric": {"fabric"},
    "leaf": {"leaf"},
    "switch": {"switch"},
    "rail": {"rail"},
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict held against what was injected.

    Parameters
    ----------
    expected : tuple of str
        What a right verdict names, sorted.
    missed, wrong : tuple of str
        Not named; named without being injected.
    symptoms : tuple of str
        Paths that a faulty shared part slows, named in its place: true as readings, not the cause.
    right_kind : bool
        The outcome fits: a hang is reported as one, a slowdown of everything as uniform, nothing as healthy.
    """

    expected: tuple[str, ...]
    missed: tuple[str, ...]
    wrong: tuple[str, ...]
    symptoms: tuple[str, ...]
    right_kind: bool

    @property
    def exact(self) -> bool:
        """Named what was injected, and nothing else."""
        return self.right_kind and not (self.missed or self.wrong or self.symptoms)


def expected_names(
    faults: Iterable[Fault], *, selectable: bool = True, placement: Placement | None = None
) -> list[str]:
    """What is identifiable of the injected faults, sorted.

    A path at a slow GPU, or under a slow part, is masked; without selectable paths neither paths nor parts can
    be named; a GPU or part that hangs or fails freezes or ends the engine, and the verdict is then
    ``inconclusive`` with the set under test. A slowdown of everything has no name: it is an outcome.
    """
    known = tuple(faults)
    if any(fault.hard for fault in known):
        return []
    slow = {
        f.component.members[0] for f in known if isinstance(f.component, Component) and f.component.kind == "gpu"
    }
    parts = _parts(known)
    names = {str(part) for part in parts} if selectable else set()
    for fault in known:
        if not isinstance(fault.component, Component):
            continue
        masked = not slow.isdisjoint(fault.component.members) or _under(fault.component, parts, placement)
        if fault.component.kind == "gpu" or (selectable and not masked):
            names.add(str(fault.component))
    return sorted(names)


def compare(
    faults: Sequence[Fault],
    *,
    outcome: str,
    named: Iterable[str],
    codes: Iterable[str],
    equals: Mapping[str, Sequence[str]] | None = None,
    selectable: bool = True,
    placement: Placement | None = None,
) -> Comparison:
    """Hold a verdict against the injected faults.

    Parameters
    ----------
    faults : sequence of Fault
        What was injected.
    outcome : str
        Of the verdict.
    named, codes : iterable of str
        Its suspects and reasons.
    equals : mapping of str to sequence of str, optional
        What it says explains the same as a suspect: of shared parts, naming either is right.
    selectable, placement
        As in `expected_names`.
    """
    expected = set(expected_names(faults, selectable=selectable, placement=placement))
    said, parts = set(codes), _parts(faults)
    names = {_part_among((name, *(equals or {}).get(name, ())), parts, said, placement) for name in named}
    paths = {name: parse_component(name) for name in names - expected if name.startswith("path:")}
    symptoms = {name for name, component in paths.items() if _under(component, parts, placement)}
    return Comparison(
        tuple(sorted(expected)),
        tuple(sorted(expected - names)),
        tuple(sorted(names - expected - symptoms)),
        tuple(sorted(symptoms)),
        _right_kind(faults, expected, outcome, said),
    )


def compare_document(
    faults: Sequence[Fault],
    verdict: Mapping[str, Any],
    *,
    selectable: bool = True,
    placement: Placement | None = None,
) -> Comparison:
    """Hold a verdict as the API shows it against the injected faults, see `compare`."""
    suspects = {f"{s['kind']}:{'-'.join(map(str, s['members']))}": s["alternatives"] for s in verdict["suspects"]}
    return compare(
        faults,
        outcome=verdict["outcome"],
        named=suspects,
        codes=[reason["code"] for reason in verdict["reasons"]],
        equals=suspects,
        selectable=selectable,
        placement=placement,
    )


def _right_kind(faults: Sequence[Fault], expected: set[str], outcome: str, codes: set[str]) -> bool:
    hard = {fault.hard for fault in faults if fault.hard}
    if hard:
        return ("engine_hung" if "hang" in hard else "engine_failed") in codes
    everything = any(fault.component.kind == "all" for fault in faults)
    return outcome == "uniform_slowdown" if everything and not expected else True


def _part_meant(name: str, parts: Sequence[SharedPart], codes: set[str], placement: Placement | None) -> str:
    """The injected part where a verdict names the GPUs at it and says by a reason that it is this kind of part."""
    if placement is None:
        return name
    for part in parts:
        if codes & SAID_AS[part.kind] and str(group_of(placement.ranks_at(part))) == name:
            return str(part)
    return name


def _part_among(
    names: Sequence[str], parts: Sequence[SharedPart], codes: set[str], placement: Placement | None
) -> str:
    """The injected part that one of a class of equals means; else the first of these."""
    meant = (_part_meant(name, parts, codes, placement) for name in names)
    return next((found for found, name in zip(meant, names, strict=True) if found != name), names[0])


def _parts(faults: Iterable[Fault]) -> list[SharedPart]:
    parts = (fault.component for fault in faults)
    return [part for part in parts if isinstance(part, SharedPart) and part.kind != "all"]


def _under(component: Component, parts: Sequence[SharedPart], placement: Placement | None) -> bool:
    """Whether a path crosses one of the parts."""
    if component.kind != "path" or placement is None:
        return False
    return any(placement.crosses(part)[component.members] for part in parts)
