"""From a text to an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.analyses.detect import read
from app.analyses.judge_pairs import judge_pairs
from app.analyses.judge_ports import judge_errors, judge_links, judge_ports
from app.analyses.judge_ranks import judge_per_rank, judge_rounds, judge_scenarios, judge_sweeps, judge_totals
from app.analyses.judge_waits import judge_any
from app.analyses.judging import inconclusive
from app.analyses.records import (
    Analysis,
    ErrorCounts,
    Judgement,
    LinkStates,
    MatrixSet,
    PairList,
    PathMatrix,
    PerRank,
    Ports,
    Reason,
    Record,
    Rounds,
    Scenarios,
    Suspect,
    Sweeps,
    Totals,
    Unjudged,
)
from app.analyses.topology import Topology

#: Ranks that a reason names; of more it gives the number.
_NAMED = 5


def analyze(text: str, *, topology: Topology | None = None, kind: str | None = None) -> Analysis:
    """Judge a measurement that somebody else made.

    Parameters
    ----------
    text : str
        What they have, in one of the formats of `app.analyses.detect.KINDS`.
    topology : Topology or None
        Where the ranks sit, where it is known.
    kind : str or None
        The format, instead of detecting it.

    Raises
    ------
    UnreadableInput
        When the text cannot be read without guessing; it names the line or field.
    """
    reading = read(text, kind)
    record, notes = reading.record, list(reading.notes)
    if topology and topology.places:
        record, notes = _placed(record, topology), [*notes, *_not_used(record, topology)]
    judgement = judge(record)
    return Analysis(reading.format, judgement.outcome, judgement.suspects, [*judgement.reasons, *notes])


def judge(record: Record) -> Judgement:
    """The judgement of the judge for this kind of record."""
    if isinstance(record, Unjudged):
        return inconclusive(record.code, record.text)
    return _JUDGES[type(record)](record)


def _judge_matrices(record: MatrixSet) -> Judgement:
    """All matrices of a paste: whoever one of them accuses; healthy only when all are.

    Lists beside matrices only add whom they accuse: GPUs of several sockets differ in what hosts give them.
    """
    answers = judge_any(record.matrices)
    lists = [judge_per_rank(values) for values in record.lists]
    answers += [answer for answer in lists if answer.suspects or not record.matrices]
    reasons = [reason for answer in answers for reason in answer.reasons]
    suspects: dict[str, Suspect] = {}
    for answer in answers:
        for suspect in answer.suspects:
            known = suspects.get(suspect.name)
            if known is None or (suspect.slowdown or 0) > (known.slowdown or 0):
                suspects[suspect.name] = suspect
    if suspects:
        return Judgement("localized", list(suspects.values()), reasons)
    outcomes = [answer.outcome for answer in answers]
    first = next((outcome for outcome in ("inconclusive", "uniform_slowdown") if outcome in outcomes), "healthy")
    return Judgement(first, reasons=reasons)  # type: ignore[arg-type]


def _placed(record: Record, topology: Topology) -> Record:
    """The record with a topology, where that covers all ranks."""
    if isinstance(record, MatrixSet):
        return replace(record, matrices=[_placed_matrix(matrix, topology) for matrix in record.matrices])
    if isinstance(record, PairList):
        return replace(record, placement=topology.hosts(), topology=topology)
    if isinstance(record, PerRank) and topology.covers(list(record.values)):
        return replace(record, hosts=topology.hosts(), topology=topology)
    return record


def _not_used(record: Record, topology: Topology) -> list[Reason]:
    """Why the topology says nothing about some of what is judged."""
    if isinstance(record, MatrixSet):
        judged = [label for one in record.matrices for label in one.labels]
    elif isinstance(record, PerRank):
        judged = list(record.values)
    else:
        return []
    missing = [str(label) for label in dict.fromkeys(judged) if not topology.covers([label])]
    if not missing:
        return []
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    text = f"the topology has no rank {', '.join(missing[:_NAMED])}{more}: judged without it"
    return [Reason("topology_not_used", text)]


def _placed_matrix(matrix: PathMatrix, topology: Topology) -> PathMatrix:
    if not topology.covers(matrix.labels):
        return matrix
    hosts = topology.hosts()
    placement = [hosts[label] for label in matrix.labels]
    return replace(matrix, placement=placement, topology=topology, one_host=len(set(placement)) == 1)


_JUDGES: dict[type, Callable[[Any], Judgement]] = {
    MatrixSet: _judge_matrices,
    PairList: judge_pairs,
    PerRank: judge_per_rank,
    Scenarios: judge_scenarios,
    Rounds: judge_rounds,
    Ports: judge_ports,
    ErrorCounts: judge_errors,
    LinkStates: judge_links,
    Sweeps: judge_sweeps,
    Totals: judge_totals,
}
