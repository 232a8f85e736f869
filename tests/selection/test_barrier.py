"""The measurement barrier: once, all or nobody, and nothing overwrites a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import pytest

from app.selection.barrier import MeasurementBarrier
from app.selection.errors import BarrierError

SOON_S = 10.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


class Snapshots:
    """Counts its calls; may be held inside one, or fail."""

    def __init__(self, *, held: bool = False, error: BaseException | None = None) -> None:
        self.calls = 0
        self.entered = threading.Event()
        self.may_end = threading.Event()
        self._error = error
        if not held:
            self.may_end.set()

    def __call__(self) -> None:
        self.calls += 1
        self.entered.set()
        assert self.may_end.wait(SOON_S)
        if self._error is not None:
            raise self._error


def arrive(
    pool: ThreadPoolExecutor, barrier: MeasurementBarrier, n: int, snapshot: Callable[[], object]
) -> list[Future[bool]]:
    return [pool.submit(barrier.arrive, snapshot, SOON_S) for _ in range(n)]


def results(arrivals: list[Future[bool]]) -> set[bool]:
    return {one.result(SOON_S) for one in arrivals}


def test_snapshot_excludes_warmup_and_precedes_every_measurement(pool: ThreadPoolExecutor) -> None:
    counted = {"bytes": 0, "start": -1}
    lock = threading.Lock()
    barrier = MeasurementBarrier(4)
    held = Snapshots(held=True)

    def snapshot() -> None:
        held()
        counted["start"] = counted["bytes"]

    def add(n: int) -> None:
        with lock:
            counted["bytes"] += n

    def work() -> bool:
        add(100)
        if not barrier.arrive(snapshot, SOON_S):
            return False
        seen = counted["start"]
        add(7)
        return seen == 400

    workers = [pool.submit(work) for _ in range(4)]
    assert held.entered.wait(SOON_S)
    assert counted["bytes"] == 400
    assert not any(worker.done() for worker in workers)
    assert not barrier.started
    held.may_end.set()
    assert results(workers) == {True}
    assert (held.calls, counted["bytes"] - counted["start"]) == (1, 28)
    assert barrier.started
    assert barrier.failure is None


def test_snapshot_failure_releases_all_workers(pool: ThreadPoolExecutor) -> None:
    barrier = MeasurementBarrier(4)
    snapshot = Snapshots(error=OSError("counters cannot be read"))
    assert results(arrive(pool, barrier, 4, snapshot)) == {False}
    assert (snapshot.calls, barrier.failure) == (1, "start snapshot: counters cannot be read")


def test_an_interrupted_snapshot_releases_the_others_and_stays_an_interrupt(pool: ThreadPoolExecutor) -> None:
    barrier = MeasurementBarrier(2)
    arrivals = arrive(pool, barrier, 2, Snapshots(error=KeyboardInterrupt()))
    ended = sorted(str(one.exception(SOON_S) is not None or one.result()) for one in arrivals)
    assert ended == ["False", "True"]
    assert barrier.failure == "start snapshot: KeyboardInterrupt"


def test_failure_during_snapshot_cannot_be_overwritten(pool: ThreadPoolExecutor) -> None:
    barrier = MeasurementBarrier(2)
    snapshot = Snapshots(held=True)
    arrivals = arrive(pool, barrier, 2, snapshot)
    assert snapshot.entered.wait(SOON_S)
    barrier.fail("a probe timed out")
    snapshot.may_end.set()
    assert results(arrivals) == {False}
    assert barrier.failure == "a probe timed out"


def test_warmup_failure_releases_waiters_and_rejects_late_arrivals(pool: ThreadPoolExecutor) -> None:
    barrier = MeasurementBarrier(3)
    snapshot = Snapshots()
    waiting = arrive(pool, barrier, 1, snapshot)
    barrier.fail("warm-up: rank 2 refused")
    assert results(waiting) == {False}
    assert [barrier.arrive(snapshot, SOON_S) for _ in range(4)] == [False] * 4
    assert snapshot.calls == 0


def test_failure_after_start() -> None:
    barrier = MeasurementBarrier(1)
    assert barrier.arrive(lambda: None)
    barrier.fail("a measured probe failed")
    barrier.fail("and then another")
    assert (barrier.started, barrier.failure) == (False, "a measured probe failed")
    assert not barrier.arrive(lambda: None)


def test_a_single_worker_takes_the_snapshot_itself() -> None:
    snapshot = Snapshots()
    assert MeasurementBarrier(1).arrive(snapshot)
    assert snapshot.calls == 1


def test_it_serves_once() -> None:
    barrier = MeasurementBarrier(1)
    assert barrier.arrive(lambda: None)
    with pytest.raises(BarrierError, match="serves once"):
        barrier.arrive(lambda: None)


def test_workers_that_never_arrive_are_not_waited_for_for_ever() -> None:
    barrier = MeasurementBarrier(2)
    assert not barrier.arrive(lambda: None, timeout_s=0.01)
    assert barrier.failure == "not all 2 workers arrived within 0.01 s: 1 did"
    assert not barrier.arrive(lambda: None, timeout_s=SOON_S)


def test_a_snapshot_that_takes_too_long_is_not_laid_to_workers(pool: ThreadPoolExecutor) -> None:
    barrier = MeasurementBarrier(2)
    snapshot = Snapshots(held=True)
    arrivals = [pool.submit(barrier.arrive, snapshot, 1.0) for _ in range(2)]
    waiting = next(as_completed(arrivals, SOON_S))
    assert waiting.result() is False
    snapshot.may_end.set()
    assert results(arrivals) == {False}
    assert barrier.failure == "all 2 workers arrived, but the start snapshot took over 1.0 s"


def test_a_barrier_without_workers_is_refused() -> None:
    with pytest.raises(BarrierError, match="at least 1"):
        MeasurementBarrier(0)
