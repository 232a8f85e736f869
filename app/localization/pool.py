"""Runs independent trials on all cores, in the order of their numbers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from app.localization.errors import LocalizationError

T = TypeVar("T")
Done = Callable[[int], None]
"""Told how many trials are done, from time to time."""

MAX_CHUNK = 16
CHUNKS_A_PROCESS = 8


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_trials(trial: Callable[[int], T], count: int, *, processes: int = 1, done: Done | None = None) -> list[T]:
    """Call ``trial`` with 0 to ``count`` - 1.

    Parameters
    ----------
    trial : callable
        What it returns must depend on its argument alone; picklable for more than one process.
    processes : int
        1: none but this one.
    done : callable, optional
        For a progress bar.

    Returns
    -------
    list
        By number.

    Raises
    ------
    LocalizationError
        A process ended before its work was done, by lack of memory for example. What ``trial`` raises comes as it
        is; then, and on an interrupt, processes are ended at once.
    """
    if processes == 1:
        return _collect(([trial(number)] for number in range(count)), done)
    others = set(active_children())
    # Not forked: this process may have threads, a progress bar's for example.
    executor = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_end_with_parent)
    size = max(1, min(MAX_CHUNK, count // (processes * CHUNKS_A_PROCESS)))
    try:
        with _interrupts_held():
            chunks = [executor.submit(_chunk, trial, at, min(at + size, count)) for at in range(0, count, size)]
        collected = _collect((chunk.result() for chunk in chunks), done)
    except BaseException as error:
        for process in set(active_children()) - others:
            process.terminate()
        executor.shutdown()
        if isinstance(error, BrokenProcessPool):
            raise LocalizationError(
                "a process ended before its trials were done: is there enough memory?"
            ) from None
        raise
    executor.shutdown()
    return collected


def _chunk(trial: Callable[[int], T], start: int, stop: int) -> list[T]:
    return [trial(number) for number in range(start, stop)]


def _collect(chunks: Iterable[list[T]], done: Done | None) -> list[T]:
    collected: list[T] = []
    for chunk in chunks:
        collected += chunk
        if done is not None:
            done(len(collected))
    return collected


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C comes afterwards: to start a process is not to be cut short.

    Processes started inside never see it, though a terminal sends it to all: this process ends them.
    """
    # Blocked is what they inherit. Threads of libraries are not blocked, so the handler is exchanged as well.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    in_charge = threading.current_thread() is threading.main_thread()
    held: list[object] = []
    handler = signal.signal(signal.SIGINT, lambda *caught: held.append(caught)) if in_charge else None
    try:
        yield
    finally:
        if in_charge:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if held:
        signal.raise_signal(signal.SIGINT)


def _end_with_parent() -> None:
    """A process whose parent was killed would wait for work forever."""
    threading.Thread(target=_outlive, daemon=True).start()


def _outlive() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
