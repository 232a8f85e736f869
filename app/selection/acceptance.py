"""The acceptance rule: do the port counters carry what was selected, on every eligible rail and nowhere else?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.selection.counters import Moved, Movement
from app.selection.distribution import Distribution, distribution
from app.selection.doubts import UNIT_DOUBTFUL, WORD, Reason, doubts
from app.selection.others import OtherPort, other_ports
from app.selection.rails import Rail, check_names, listed
from app.selection.record import Records
from app.selection.results import Result, worst
from app.selection.tolerances import Tolerances
from app.selection.traffic import Flow, flows, selected, without_direction


@dataclass(frozen=True)
class RailJudgement:
    """One rail; ``remote`` is null for a device that is not eligible and was selected all the same.

    A rail that may end at several remotes names them all, joined by ``+``; ``remotes`` has them apart, which the
    document leaves out. Wire bytes are null when not known.
    """

    local: str
    remote: str | None
    selected_bytes: int
    source_wire_bytes: int | None
    target_wire_bytes: int | None
    result: Result
    reason: str
    remotes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a document."""
        return {name: value for name, value in vars(self).items() if name != "remotes"}


@dataclass(frozen=True)
class Judgement:
    """The answer for all rails, with its numbers."""

    result: Result
    rails: tuple[RailJudgement, ...]
    distribution: Distribution
    other_ports: tuple[OtherPort, ...]
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a document."""
        return {
            "result": self.result,
            "rails": [rail.to_dict() for rail in self.rails],
            "distribution": self.distribution.to_dict(),
            "other_ports": [port.to_dict() for port in self.other_ports],
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


def judge(
    records: Records, rails: Sequence[Rail], movement: Movement, tolerances: Tolerances | None = None
) -> Judgement:
    """Judge the windows of a file against counters that were read before the first and after the last of them.

    *Inconclusive* when anything that is needed is not known; else *fail* when a rail or another port breaks the
    rule; else *pass*. Bytes are compared, never allocations with requests (requests may be merged), nor slices
    times the block size (the last slice has the remainder).

    Raises
    ------
    RailFileError
        When the rail file names a device that neither the records nor the target's counters have.
    """
    limits = tolerances or Tolerances()
    by_device = selected(records.pairs)
    check_names(rails, by_device.keys(), movement.devices("target"))
    known = () if without_direction(records) else flows(records)
    doubt = doubts(records, rails, movement, known, limits)
    case = _Case(records, _groups(rails), movement, limits, known, by_device)
    judged = [case.rail(rail) for rail in rails]
    shaky = [reason for reason in doubt if reason.shakes]
    if shaky:
        judged = [_softened(rail, shaky[0]) for rail in judged]
    eligible = {rail.local for rail in rails}
    judged += [_stranger(name, n) for name, n in sorted(by_device.items()) if n and name not in eligible]
    allowed = max(limits.other_bytes, int(limits.other_share * sum(by_device.values())))
    if any(reason.code == UNIT_DOUBTFUL for reason in doubt):
        allowed *= WORD  # ports that stood still by the other unit are not accused of this one
    others = other_ports(movement, rails, allowed)
    results: list[Result] = [*(rail.result for rail in judged), *(port.result for port in others)]
    if any(reason.decides for reason in doubt):
        results.append("inconclusive")
    shares = distribution({name: by_device[name] for name in by_device if name in eligible or by_device[name]})
    return Judgement(worst(results), tuple(judged), shares, others, tuple(doubt))


@dataclass(frozen=True)
class _Case:
    """What every rail is judged by."""

    records: Records
    groups: Mapping[str, tuple[list[str], list[str]]]
    movement: Movement
    limits: Tolerances
    flows: Sequence[Flow]
    selected: Mapping[str, int]

    def rail(self, rail: Rail) -> RailJudgement:
        """A rail's own source device, and its remotes against all the rails that may end there."""
        sharing, remotes = self.groups[rail.local]
        wire = [
            (
                flow,
                self.movement.wire("source", [rail.local], flow.source),
                self.movement.wire("target", remotes, flow.target),
            )
            for flow in self.flows
        ]
        result, reason = self._concluded(rail.local, self._findings(rail.local, wire))
        if len(sharing) > 1:
            others = listed([name for name in sharing if name != rail.local])
            reason = f"{reason}; at the target together with {others}"
        return RailJudgement(
            local=rail.local,
            remote="+".join(rail.remotes),
            selected_bytes=self.selected[rail.local],
            source_wire_bytes=_total([source for _, source, _ in wire]),
            target_wire_bytes=_total([target for _, _, target in wire]),
            result=result,
            reason=reason,
            remotes=rail.remotes,
        )

    def _findings(self, local: str, wire: Sequence[tuple[Flow, Moved, Moved]]) -> Iterator[tuple[Result, str]]:
        sharing, remotes = self.groups[local]
        for flow, source, target in wire:
            own = flow.selected.get(local, 0)
            together = sum(flow.selected.get(name, 0) for name in sharing)
            for where, wanted, moved in (
                (f"source {local}", own, source),
                (f"target {listed(remotes, '+')}", together, target),
            ):
                # Where nothing was selected there is no ratio; a counter that is not known is a gap all the same.
                if own or moved.trouble:
                    yield _compared(where, wanted, moved, self.limits)

    def _concluded(self, local: str, found: Iterable[tuple[Result, str]]) -> tuple[Result, str]:
        findings = list(found)
        if not self.selected[local]:
            last = self.records.pairs[-1].record.selection.devices
            gone = any(device.device_name == local and not device.available for device in last)
            why = f"eligible, but never selected{': it was not available' if gone else ''}"
            unknown = [text for _, text in findings]
            return ("inconclusive", "; ".join([why, *unknown])) if unknown else ("fail", why)
        if not findings:
            return "inconclusive", "its operation has no direction that is known here"
        result = worst(found for found, _ in findings)
        return result, "; ".join(text for found, text in findings if found == result)


def _compared(where: str, wanted: int, moved: Moved, limits: Tolerances) -> tuple[Result, str]:
    if moved.wire_bytes is None:
        return "inconclusive", f"{where}: counter {moved.trouble}"
    ratio = moved.wire_bytes / wanted
    text = f"{where}: {moved.wire_bytes} wire bytes are {ratio:.3f} of {wanted} selected"
    if limits.allow(ratio):
        return "pass", text
    hint = next((" (4 times: is the unit right?)" for odd in (4.0, 0.25) if limits.allow(ratio / odd)), "")
    return "fail", f"{text}, not {limits}{hint}"


def _groups(rails: Sequence[Rail]) -> dict[str, tuple[list[str], list[str]]]:
    """By local: the locals and remotes that cannot be told apart at the target, as they share a remote."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for rail in rails:
        if rail.local in found:
            continue
        locals_, remotes = {rail.local}, set(rail.remotes)
        while more := [r for r in rails if r.local not in locals_ and remotes.intersection(r.remotes)]:
            locals_.update(r.local for r in more)
            remotes.update(remote for r in more for remote in r.remotes)
        found |= dict.fromkeys(locals_, (sorted(locals_), sorted(remotes)))
    return found


def _softened(rail: RailJudgement, why: Reason) -> RailJudgement:
    """A rail that only its counters accuse, when the counters cannot be believed."""
    if rail.result != "fail" or not rail.selected_bytes:
        return rail
    return replace(rail, result="inconclusive", reason=f"{rail.reason}; {why.text}")


def _stranger(name: str, n: int) -> RailJudgement:
    return RailJudgement(name, None, n, None, None, "fail", "selected, but not eligible by the rail file")


def _total(each: Sequence[Moved]) -> int | None:
    if not each or any(one.wire_bytes is None for one in each):
        return None
    return sum(one.wire_bytes or 0 for one in each)
