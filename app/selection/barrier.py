"""The line between warm-up and measurement."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from app.selection.errors import BarrierError


class MeasurementBarrier:
    """One-shot barrier of workers that have warmed up.

    The last one to arrive takes the start snapshot, before any of them is released. Whatever fails, warm-up,
    snapshot or a measured probe, fails the barrier; nothing overwrites that, and the first reason stays.

    Parameters
    ----------
    workers : int
        How many there are, at least 1.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BarrierError(f"{workers} workers: must be at least 1")
        self._changed = threading.Condition()
        self._workers = workers
        self._arrived = 0
        self._state: Literal["waiting", "started", "failed"] = "waiting"
        self._failure = ""

    def arrive(self, snapshot: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait until all have arrived and the start snapshot is taken.

        Parameters
        ----------
        snapshot : callable
            Takes the start snapshot; called once, by the last worker only. What it raises fails the barrier.
        timeout_s : float, optional
            Longest wait for the others and the snapshot; beyond it the barrier fails for all.

        Returns
        -------
        bool
            Whether measuring may begin; False when the barrier failed.

        Raises
        ------
        BarrierError
            When more workers arrive than there are.
        """
        if self._is_last():
            self._start(snapshot)
        with self._changed:
            if not self._changed.wait_for(lambda: self._state != "waiting", timeout_s):
                self._fail(self._late(timeout_s))
            return self._state == "started"

    def fail(self, reason: str) -> None:
        """Fail for all, now or after the start; who waits is released."""
        with self._changed:
            self._fail(reason)

    @property
    def started(self) -> bool:
        """Whether measuring has begun and nothing failed."""
        with self._changed:
            return self._state == "started"

    @property
    def failure(self) -> str | None:
        """Why it failed, or None."""
        with self._changed:
            return self._failure if self._state == "failed" else None

    def _is_last(self) -> bool:
        with self._changed:
            if self._state == "failed":
                return False
            if self._arrived == self._workers:
                raise BarrierError(f"all {self._workers} workers have arrived already; a barrier serves once")
            self._arrived += 1
            return self._arrived == self._workers

    def _start(self, snapshot: Callable[[], object]) -> None:
        # Not under the lock: a failure elsewhere must not wait for the snapshot.
        try:
            snapshot()
        except BaseException as error:
            self.fail(f"start snapshot: {str(error) or type(error).__name__}")
            if not isinstance(error, Exception):
                raise
        with self._changed:
            if self._state == "waiting":
                self._state = "started"
                self._changed.notify_all()

    def _late(self, timeout_s: float | None) -> str:
        if self._arrived == self._workers:
            return f"all {self._workers} workers arrived, but the start snapshot took over {timeout_s} s"
        return f"not all {self._workers} workers arrived within {timeout_s} s: {self._arrived} did"

    def _fail(self, reason: str) -> None:
        if self._state != "failed":
            self._state, self._failure = "failed", reason
            self._changed.notify_all()
