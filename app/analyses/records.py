"""What the readers hand to the judges: one record a kind of measurement, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from app.analyses.topology import Topology

Label = int | str
Matrix = NDArray[np.float64]
Outcome = Literal["localized", "healthy", "uniform_slowdown", "inconclusive"]
#: Which values are bad: high ones (latencies) or low ones (bandwidths).
Bad = Literal["high", "low"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the answer is what it is: a stable code and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """One slow component.

    Parameters
    ----------
    kind : {"gpu", "path", "group"}
        A GPU stands for any vertex: rank, node, NIC or port.
    members : list of int or str
        Ranks where the measurement numbers them, else its names. A path has two, or the one name of a link.
    slowdown : float or None
        How much slower than its like; None without a figure: down, measured zero, or seen by waits or errors only.
    name : str
        For people.
    """

    kind: Literal["gpu", "path", "group"]
    members: list[Label]
    slowdown: float | None
    name: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer of one judge."""

    outcome: Outcome
    suspects: list[Suspect] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PathMatrix:
    """An n x n matrix of latencies, waits or bandwidths.

    Parameters
    ----------
    labels : sequence of int or str
        Row (and column) names, n of them.
    values : ndarray
        float64, (n, n); NaN where nothing was measured; the diagonal is not used.
    bad : {"high", "low"}
        Which values are bad.
    placement : sequence of str or None
        Host of each label.
    topology : Topology or None
        All that is known of where the labels sit.
    one_host : bool
        All of it is known to sit in one host.
    baseline : ndarray or None
        The same matrix in a healthy state.
    title : str
        What it shows, for reasons.
    in_gb : bool
        The values are gigabytes a second, so that their size tells the fabric.
    wait : bool
        Row waited for column: whoever others wait for is slow, who waits long is early.
    over_host : bool
        Through the memory of the host, where what was measured first may be slow once, in one direction.
    """

    labels: Sequence[Label]
    values: Matrix
    bad: Bad
    placement: Sequence[str] | None = None
    one_host: bool = False
    baseline: Matrix | None = None
    title: str = "matrix"
    in_gb: bool = False
    topology: Topology | None = None
    wait: bool = False
    over_host: bool = False


@dataclass(frozen=True, slots=True)
class MatrixSet:
    """The matrices of one paste, and the tests of it that have one row: what each GPU exchanges with the host."""

    matrices: Sequence[PathMatrix]
    lists: Sequence[PerRank] = ()


@dataclass(frozen=True, slots=True)
class PairList:
    """Measurements of single pairs: ``(a, b, value)``."""

    pairs: Sequence[tuple[Label, Label, float]]
    bad: Bad
    placement: Mapping[Label, str] | None = None
    tags: Mapping[str, frozenset[tuple[Label, Label]]] = field(default_factory=dict)
    reference: Mapping[tuple[Label, Label], float] | None = None
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class PerRank:
    """One value a rank (or node, NIC, ...) and the classes within which values may be compared.

    Parameters
    ----------
    values : mapping
        Finite, not negative.
    bad : {"high", "low"}
        Which values are bad.
    wait : bool
        Waiting for others: the culprit waits *least*.
    classes : sequence of mapping
        Ways to tell classes of like labels (pipeline stage, NIC index): label to class.
    hosts : mapping or None
        Label to host, where known: a host that is slow as a whole is a group, not a class.
    metric : str
        What was measured, for reasons.
    """

    values: Mapping[Label, float]
    bad: Bad
    wait: bool = False
    classes: Sequence[Mapping[Label, str]] = ()
    hosts: Mapping[Label, str] | None = None
    metric: str = "value"
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class Scenarios:
    """The same ranks under several conditions; one may be a control in which all are alike."""

    runs: Sequence[tuple[str, PerRank]]
    own_work: bool = False


@dataclass(frozen=True, slots=True)
class Rounds:
    """Check times of nodes, re-paired from round to round, in order; rounds after a repair are left out."""

    rounds: Sequence[Mapping[Label, float]]
    after_repair: int = 0


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports, and what each that states it says.

    Parameters
    ----------
    up : mapping of label to bool
        Whether it is active.
    rate, expected : mapping of label to float
        Of its link, and what its interface could do; Gbit/s.
    kind : mapping of label to str
        Link layer: an Ethernet port beside InfiniBand ones serves something else.
    trouble : mapping of str to mapping
        Counts of its own trouble, by counter.
    """

    up: Mapping[Label, bool]
    rate: Mapping[Label, float]
    expected: Mapping[Label, float]
    kind: Mapping[Label, str] = field(default_factory=dict)
    trouble: Mapping[str, Mapping[Label, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Counts of errors a port; several runs with different peers say whether it is the port or the far end.

    Parameters
    ----------
    runs : sequence of mapping
        Port to count, one mapping a run; ports that are not named counted nothing.
    peers : sequence of str or None
        The far end of each run, None when it is not stated.
    log_scale : bool
        Error *rates*, compared in decades.
    of_links : bool
        The names are links, so what is named is a path.
    """

    runs: Sequence[Mapping[Label, float]]
    peers: Sequence[str | None]
    log_scale: bool = False
    of_links: bool = False


@dataclass(frozen=True, slots=True)
class LinkStates:
    """Links of each GPU: a speed, 1.0 for up without a speed, 0.0 for down, None where there is no link."""

    links: Mapping[Label, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Bus bandwidth over message size, one curve a host (or one alone)."""

    curves: Mapping[Label, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of concurrent transfers, one mapping of metric to value a pattern."""

    patterns: Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Read, but of a kind that names nobody."""

    code: str
    text: str


Record = (
    MatrixSet
    | PairList
    | PerRank
    | Scenarios
    | Rounds
    | Ports
    | ErrorCounts
    | LinkStates
    | Sweeps
    | Totals
    | Unjudged
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader found: the format's name, the record, and what was left out."""

    format: str
    record: Record
    notes: Sequence[Reason] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """The answer to one input."""

    format: str
    outcome: Outcome
    suspects: list[Suspect]
    reasons: list[Reason]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "format": self.format,
            "outcome": self.outcome,
            "suspects": [
                {"kind": s.kind, "members": s.members, "slowdown": s.slowdown, "name": s.name}
                for s in self.suspects
            ],
            "reasons": [{"code": r.code, "text": r.text} for r in self.reasons],
        }
