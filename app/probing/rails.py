"""Chooses the rail of every sequence, and keeps the measured phase as a window of its own.

A rail is a URL that reaches a sender rank; ranks behind one URL only have no choice, but are counted alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.selection.errors import WindowError
from app.selection.record import SelectionRecord, TargetRecord
from app.selection.selector import RailInfo, RailSelector, Slice, Strategy
from app.selection.window import MeasurementWindow, Workload


class Lane(NamedTuple):
    """A request: the rank that takes it, and the rail (index of an endpoint) that carries it there."""

    rank: int
    rail: int


@dataclass(frozen=True)
class Choice:
    """Which rail carries each sequence of a probe.

    Parameters
    ----------
    receivers : dict of Lane to list of int
        Receiver of each sequence of a request.
    slices : dict of Lane to list of Slice
        The same sequences as the selector counted them.
    """

    receivers: dict[Lane, list[int]] = field(default_factory=lambda: defaultdict(list))
    slices: dict[Lane, list[Slice]] = field(default_factory=lambda: defaultdict(list))

    @property
    def rails(self) -> list[int]:
        """The rails that carry something, ascending."""
        return sorted({lane.rail for lane in self.receivers})


@dataclass(frozen=True)
class Measured:
    """The measured phase of one attempt at a job: its records, or why not; neither when nothing was sent."""

    record: SelectionRecord | None = None
    target: TargetRecord | None = None
    failure: str | None = None


class Rails:
    """The rails of a replica, for as long as one prober lives.

    Parameters
    ----------
    access : ReplicaAccess
        The replica.
    sequence_tokens : int
        Tokens of a sequence, prompt and answer. A slice is a sequence; its bytes are these tokens x the bytes of a
        hidden state.
    strategy : {"smart", "baseline"}
        How rails are chosen.
    """

    def __init__(self, access: ReplicaAccess, sequence_tokens: int, strategy: Strategy) -> None:
        self._access = access
        self._block = sequence_tokens * access.token_bytes
        self._selector = RailSelector(_named(access.endpoints), strategy=strategy)
        self._window = MeasurementWindow(self._selector, workers=1)
        self._reach: dict[int, list[int]] = defaultdict(list)
        for rail, endpoint in enumerate(access.endpoints):
            for rank in endpoint.ranks:
                self._reach[rank].append(rail)
        self._batch = self._senders = 0
        self._sent_s = 0.0
        self._answered: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    @property
    def several(self) -> bool:
        """Whether the replica has more than one."""
        return len(self._access.endpoints) > 1

    def of(self, rank: int) -> list[int]:
        """The rails that reach a rank and have not been lost, ascending."""
        return self._reach[rank]

    def parking(self, rank: int) -> Lane:
        """Where a rank is parked: not measured, so it is neither chosen nor counted."""
        return Lane(rank, self._reach[rank][0])

    def lose(self, rail: int) -> bool:
        """Use a rail no more, unless it is the last one of a rank; whether it was given up."""
        ranks = self._access.endpoints[rail].ranks
        if any(self._reach[rank] == [rail] for rank in ranks):
            return False
        for rank in ranks:
            self._reach[rank].remove(rail)
        self._selector.set_available(rail, False)
        return True

    def begin(self) -> None:
        """All ranks have warmed up: what is counted from here on belongs to the window."""
        self._window.arrive()

    def fail(self, reason: str) -> None:
        """Something went wrong in the warm-up or the measured phase: there will be no record."""
        self._window.barrier.fail(reason)

    def choose(self, sends: Mapping[int, Mapping[int, int]]) -> Choice:
        """Choose rails for the requests of a probe, a slice a sequence.

        Parameters
        ----------
        sends : mapping
            sender -> receiver -> sequences.
        """
        choice = Choice()
        for sender, receivers in sends.items():
            wanted = [r for r, sequences in receivers.items() for _ in range(sequences)]
            self._batch = max(self._batch, len(wanted))
            chosen = self._selector.select(len(wanted) * self._block, self._block, among=self.of(sender))
            for receiver, part in zip(wanted, chosen.slices, strict=True):
                lane = Lane(sender, part.dev_id)
                choice.receivers[lane].append(receiver)
                choice.slices[lane].append(part)
        self._senders = max(self._senders, len(sends))
        return choice

    def answered(self, choice: Choice, seconds: Mapping[Lane, float]) -> None:
        """All sequences came back whole, so many seconds after they were sent."""
        self._sent_s += max(seconds.values())
        for lane, parts in choice.slices.items():
            count = self._answered[lane.rank]
            count[0] += 1
            count[1] += sum(part.n_bytes for part in parts)
            for part in parts:
                self._selector.release(part, seconds[lane])

    def dropped(self, choice: Choice) -> None:
        """Something did not come back: nothing is learnt of any rail."""
        for parts in choice.slices.values():
            for part in parts:
                self._selector.release(part)

    def finish(self) -> Measured:
        """The records of the measured phase, when nothing more will be sent."""
        if not self._senders and self._window.barrier.failure is None:
            return Measured()
        workload = Workload(self._block, self._batch, self._senders)
        try:
            record = self._window.finish(workload)
        except WindowError as error:
            return Measured(failure=str(error))
        return Measured(record, self._target(workload))

    def _target(self, workload: Workload) -> TargetRecord:
        total = sum(n_bytes for _, n_bytes in self._answered.values())
        return TargetRecord(
            schema_version=1,
            record_type="target_metrics",
            **vars(workload),
            aggregate_operations=sum(requests for requests, _ in self._answered.values()),
            aggregate_transferred_bytes=total,
            aggregate_throughput_gbps=total / self._sent_s / 1e9 if self._sent_s else None,
            targets=[
                {"rank": rank, "operations": requests, "transferred_bytes": n_bytes}
                for rank, (requests, n_bytes) in sorted(self._answered.items())
            ],
        )


def _named(endpoints: Sequence[ProbeEndpoint]) -> list[RailInfo]:
    """Rails by name; where endpoints of different ranks state the same one, told apart by their number."""
    often = Counter(endpoint.label for endpoint in endpoints)
    return [
        RailInfo(i, endpoint.label if often[endpoint.label] == 1 else f"{endpoint.label[:190]}#{i}")
        for i, endpoint in enumerate(endpoints)
    ]
