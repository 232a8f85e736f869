"""Server-sent events of jobs: one poll of the database a process, however many watch.

Watchers of one job share a feed, whose last events are kept encoded; a watcher that is further behind reads the
database by itself. So 200 watchers cost two queries every half second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import takewhile
from weakref import WeakKeyDictionary

from fastapi.sse import format_sse_event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from app.jobs import documents, repository, service
from app.jobs.documents import LIVE
from app.jobs.models import Job, JobEvent
from app.kit.db import get_engine

logger = logging.getLogger(__name__)

POLL_S = 0.5
HEARTBEAT_S = 10.0
# A stream ends after this and its watcher reconnects: a key that was revoked meanwhile then no longer opens it.
LONGEST_S = 300.0
PAGE = 500
TAIL = 1000

Encoded = tuple[int, bytes]


class Feed:
    """What is known of a watched job.

    Parameters
    ----------
    last : int
        Number of its last stored event; -1 for none.
    """

    def __init__(self, last: int) -> None:
        self.start = last
        self.last = last
        self.watchers = 0
        self.state: bytes | None = None
        self.end: bytes | None = None
        self.changed = asyncio.Event()
        self._tail: deque[Encoded] = deque()

    def put(self, events: Iterable[Encoded], state: bytes, end: bytes | None) -> None:
        """Take in what a poll found, and wake the watchers when it is news."""
        before = (self.last, self.state, self.end)
        for event in events:
            self._tail.append(event)
            self.last = event[0]
        while len(self._tail) > TAIL:
            self.start = self._tail.popleft()[0]
        self.state, self.end = state, end
        if (self.last, state, end) != before:
            self.changed.set()
            self.changed = asyncio.Event()

    def after(self, seq: int) -> list[Encoded]:
        """Events after a number, which must not be before ``start``."""
        # From the end: each of many watchers asks for the newest few, not for the whole tail.
        news = list(takewhile(lambda event: event[0] > seq, reversed(self._tail)))
        return news[::-1]


class Hub:
    """The feeds of one event loop, and the task that keeps them current while there are any."""

    def __init__(self) -> None:
        self._feeds: dict[uuid.UUID, Feed] = {}
        self._poller: asyncio.Task[None] | None = None
        self.polls = 0

    def join(self, job_id: uuid.UUID, last: int) -> Feed:
        """Watch a job."""
        feed = self._feeds.setdefault(job_id, Feed(last))
        feed.watchers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return feed

    def leave(self, job_id: uuid.UUID) -> None:
        """Watch it no more."""
        feed = self._feeds[job_id]
        feed.watchers -= 1
        if feed.watchers == 0:
            del self._feeds[job_id]

    async def _poll(self) -> None:
        while self._feeds:
            wanted = {job_id: feed.last for job_id, feed in self._feeds.items()}
            try:
                found = await asyncio.to_thread(_news, wanted)
            except (DBAPIError, PoolTimeoutError) as error:
                logger.warning("jobs cannot be watched: %s", type(error).__name__)
            except Exception:  # a bug with one job must not end the watching of all
                logger.exception("jobs cannot be watched")
            else:
                for job_id, news in found.items():
                    if job_id in self._feeds:
                        self._feeds[job_id].put(*news)
            self.polls += 1
            await asyncio.sleep(POLL_S)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


async def watch(job_id: uuid.UUID, after: int) -> AsyncIterator[bytes]:
    """Events of a job after a number, encoded for a stream.

    Raises
    ------
    Problem
        404, before anything is streamed.
    """
    last = await asyncio.to_thread(_last, job_id)
    hub = _hubs.setdefault(asyncio.get_running_loop(), Hub())
    return _stream(hub, job_id, min(after, last), last)


async def _stream(hub: Hub, job_id: uuid.UUID, seen: int, last: int) -> AsyncIterator[bytes]:
    feed = hub.join(job_id, last)
    state: bytes | None = None
    ends = time.monotonic() + LONGEST_S
    try:
        yield b": watching\n\n"
        while time.monotonic() < ends:
            changed = feed.changed
            if seen < feed.start:
                found = await asyncio.to_thread(_page, job_id, seen)
                seen = found[-1][0] if found else feed.start
            else:
                found = feed.after(seen)
                seen = max(seen, feed.last)
            if feed.state is not None and feed.state != state and seen >= feed.start:
                state = feed.state
                found.append((seen, state))
            if found:
                yield b"".join(encoded for _, encoded in found)
            elif feed.end is not None:
                yield feed.end
                return
            elif not await _happens(changed):
                yield b": still watching\n\n"
    finally:
        hub.leave(job_id)


async def _happens(changed: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
    except TimeoutError:
        return False
    return True


def _last(job_id: uuid.UUID) -> int:
    with Session(get_engine()) as db:
        service.get(db, job_id)
        return repository.last_seq(db, job_id)


def _page(job_id: uuid.UUID, after: int) -> list[Encoded]:
    with Session(get_engine()) as db:
        return [_encode(event) for event in repository.events_after(db, {job_id: after}, PAGE)]


def _news(wanted: dict[uuid.UUID, int]) -> dict[uuid.UUID, tuple[list[Encoded], bytes, bytes | None]]:
    """What is new of jobs since these events. States are read first: after an ended one no event follows."""
    with Session(get_engine()) as db:
        jobs = repository.some(db, list(wanted))
        events: dict[uuid.UUID, list[Encoded]] = {job.id: [] for job in jobs}
        for event in repository.events_after(db, {job.id: wanted[job.id] for job in jobs}, PAGE):
            events[event.job_id].append(_encode(event))
        ended = [job for job in jobs if job.state not in LIVE and len(events[job.id]) < PAGE]
        ends = {shown.id: shown.model_dump_json() for shown in documents.with_verdicts(db, ended)}
    return {
        job.id: (
            events[job.id],
            _encode_state(job),
            format_sse_event(data_str=ends[job.id], event="end", id="end") if job.id in ends else None,
        )
        for job in jobs
    }


def _encode(event: JobEvent) -> Encoded:
    document = {"seq": event.seq, "at": event.created_at.isoformat(), "type": event.type, **event.data}
    return event.seq, format_sse_event(
        data_str=json.dumps(document, allow_nan=False), event=event.type, id=str(event.seq)
    )


def _encode_state(job: Job) -> bytes:
    document = {"state": job.state, "phase": job.phase, "done": job.done, "planned": job.planned}
    return format_sse_event(data_str=json.dumps(document), event="state")
