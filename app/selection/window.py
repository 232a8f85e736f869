"""A measurement window: from the barrier's start snapshot to the end snapshot, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.selection.barrier import MeasurementBarrier
from app.selection.delta import delta
from app.selection.errors import WindowError
from app.selection.record import Selection, SelectionRecord
from app.selection.selector import RailSelector


@dataclass(frozen=True)
class Workload:
    """What runs in the window, as the record says it.

    Parameters
    ----------
    block_size : int
        Bytes of a slice; of a probe: tokens x hidden size x bytes a number.
    batch_size : int
        Requests a selection; of a probe: sequences a request.
    num_threads : int
        Senders.
    """

    block_size: int
    batch_size: int
    num_threads: int
    op_type: str = "probe"
    backend: str = "faultsense"


class MeasurementWindow:
    """The measured phase of a run; warm-up is what a selector counted before it.

    Parameters
    ----------
    selector : RailSelector
        Whose counters are read; reading changes no choice.
    workers : int
        Threads that must arrive.
    emit : callable, optional
        Takes the record of a window that succeeded. Default: nothing is emitted.
    """

    def __init__(
        self,
        selector: RailSelector,
        workers: int,
        emit: Callable[[SelectionRecord], None] | None = None,
    ) -> None:
        self.barrier = MeasurementBarrier(workers)
        self._selector = selector
        self._emit = emit
        self._start: tuple[int, Selection] | None = None

    def arrive(self, timeout_s: float | None = None) -> bool:
        """A worker has warmed up; whether it may measure."""
        return self.barrier.arrive(self._take_start, timeout_s)

    def finish(self, workload: Workload) -> SelectionRecord:
        """Take the end snapshot and make the record. All workers must have finished.

        Parameters
        ----------
        workload : Workload
            What ran, for the record.

        Raises
        ------
        WindowError
            When the window failed or never began, its end cannot be read, the topology was replaced in it, or a
            counter was reset; nothing is emitted then.
        """
        if self.barrier.failure is not None:
            raise WindowError(f"the window failed: {self.barrier.failure}")
        if self._start is None or not self.barrier.started:
            raise WindowError("the window has not begun: not all workers have arrived")
        topology, start = self._start
        end = self._take_end()
        if self._selector.topology != topology:
            raise WindowError("the topology was replaced in the window")
        found = delta(start, end)
        if not found.whole:
            lost = ", ".join((*found.resets, *(f"devices.{i}" for i in found.only_in_start)))
            raise WindowError(f"counters were reset or lost in the window: {lost}")
        record = SelectionRecord(
            schema_version=1,
            record_type="rdma_selection_metrics",
            measurement_window="snapshot_delta",
            selection=found.selection,
            **vars(workload),
        )
        if self._emit is not None:
            self._emit(record)
        return record

    def _take_end(self) -> Selection:
        try:
            return self._selector.snapshot()
        except Exception as error:
            self.barrier.fail(f"end snapshot: {error}")
            raise WindowError(f"the window failed: end snapshot: {error}") from error

    def _take_start(self) -> None:
        self._start = (self._selector.topology, self._selector.snapshot())
