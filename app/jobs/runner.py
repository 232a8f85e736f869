"""Runs a slice of a job: claim, resume from the log, probe, append, and give the job back or end it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session as DbSession

from app.jobs import accounts, outcomes, repository
from app.jobs.models import Job, JobVerdict, JobWindow
from app.kit import logs
from app.kit.secrets import SecretsError
from app.localization.errors import LocalizationError
from app.localization.events import Event
from app.localization.session import Session, resume
from app.localization.settings import Settings as SessionSettings
from app.localization.verdict import Verdict
from app.probing.access import ReplicaAccess
from app.probing.budget import Budget
from app.probing.errors import PreflightError
from app.probing.preflight import preflight
from app.probing.prober import ProbeInterruptedError, Prober
from app.probing.rails import Measured
from app.replicas import service as replicas
from app.replicas.models import Replica
from app.settings import Settings

logger = logging.getLogger(__name__)

SliceEnd = Literal["nothing_to_do", "ended", "again", "lease_lost"]


class LeaseLostError(Exception):
    """Another attempt has the job: whatever this one still knows must not be written."""


def run_slice(
    engine: Engine, settings: Settings, job_id: uuid.UUID, *, stopping: Callable[[], bool] = lambda: False
) -> SliceEnd:
    """Work on a job for at most one slice.

    Parameters
    ----------
    stopping : callable
        Asked between probes; the job is given back when it says so.

    Returns
    -------
    str
        ``again`` when the job was given back and a worker must be told of it.

    Raises
    ------
    sqlalchemy.exc.OperationalError
        When PostgreSQL goes away; the lease runs out and the sweep brings the job back.
    """
    with DbSession(engine, expire_on_commit=False) as db:
        job, recovered = repository.claim(db, job_id, settings.lease_s)
        if recovered:
            accounts.count_recovery(db)
        replica = None if job is None else db.scalar(select(Replica).where(Replica.id == job.replica_id))
        db.commit()
        if job is None or replica is None:
            return "nothing_to_do"
        autocommit = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with logs.about_job(job.id, job.replica_id), autocommit as log:
            logger.info("job %s attempt %d: taken up", job.id, job.attempt)
            try:
                work = _Slice(db, log, job, replica, engine=engine, settings=settings, stopping=stopping)
                return asyncio.run(work.run())
            except LeaseLostError:
                logger.warning("job %s attempt %d: lease lost", job.id, job.attempt)
                return "lease_lost"


class _Slice:
    def __init__(
        self,
        db: DbSession,
        log: Connection,
        job: Job,
        replica: Replica,
        *,
        engine: Engine,
        settings: Settings,
        stopping: Callable[[], bool],
    ) -> None:
        self._stopping = stopping
        self._db = db
        self._log = log
        self._engine = engine
        self._settings = settings
        self._job = job
        self._replica = replica
        self._seq = 0
        self._heard = repository.heard(db, job.id)
        self._ended_by: Event | None = None
        self._lease_lost = asyncio.Event()
        self._ends_at = time.monotonic() + settings.slice_s
        # The database's clock says when the deadline is, this machine's monotonic one counts down to it.
        self._deadline = time.monotonic() + repository.seconds_left(db, job.id)

    async def run(self) -> SliceEnd:
        heartbeat = asyncio.create_task(self._keep_lease())
        try:
            return await self._work()
        finally:
            heartbeat.cancel()
            with suppress(asyncio.CancelledError):
                await heartbeat

    async def _work(self) -> SliceEnd:
        log = repository.events(self._db, self._job.id)
        self._db.commit()  # no transaction stays open while probes run
        if not log and (stop := self._interruption()) is not None and stop.type == "cancelled":
            return self._finish("cancelled", _as_error(stop))
        try:
            access = replicas.access(self._replica)
            session = await self._open_session(access, log)
        except PreflightError as error:
            return self._fail(error.code, error.detail)
        except SecretsError as error:
            return self._fail("secret_unreadable", str(error))
        except LocalizationError as error:
            return self._fail("log_mismatch", f"the job's log does not fit this version of the service: {error}")
        limits = self._replica.document["limits"]
        budget = Budget(limits["probes_per_second"], limits["tokens_per_second"])
        prober = Prober(
            access,
            session.settings,
            budget,
            interrupted=self._unwanted,
            rails=self._job.request.get("rail_selection", "smart"),
            warm_up_s=self._settings.warm_up_s,
        )
        async with prober:
            return await self._probe(session, prober)

    async def _probe(self, session: Session, prober: Prober) -> SliceEnd:
        while not isinstance(upcoming := session.next(), Verdict):
            if (stop := self._interruption()) is not None:
                self._take(session, stop)
            elif time.monotonic() >= self._ends_at or self._stopping():
                await prober.leave()
                self._keep_window(prober)
                return self._give_back()
            else:
                with suppress(ProbeInterruptedError):  # the next turn finds out why
                    self._take(session, await prober.measure(upcoming))
        if self._heard.stop is None:  # else nothing more is sent, not even to park ranks
            await prober.leave()
        self._keep_window(prober)
        return self._end(upcoming)

    def _keep_window(self, prober: Prober) -> None:
        """What was selected in this attempt; it is committed with the attempt's end, or not at all."""
        found = prober.selection()
        if found == Measured():
            return
        self._db.add(
            JobWindow(
                job_id=self._job.id,
                attempt=self._job.attempt,
                record=None if found.record is None else found.record.model_dump(),
                target=None if found.target is None else found.target.model_dump(),
                failure=found.failure,
            )
        )

    def _unwanted(self) -> bool:
        """Whether a measurement that was begun need not be sent any more."""
        return self._heard.cancel or self._heard.stop is not None or self._stopping() or self._lease_lost.is_set()

    async def _open_session(self, access: ReplicaAccess, log: list[Event]) -> Session:
        """A new session after the preflight, or the one that the log describes."""
        if not log:
            found = await preflight(access)
            settings = replace(
                SessionSettings.from_dict(self._job.settings),
                engine=found.engine,
                history_ms=repository.healthy_baseline(self._db, self._job),
            )
            self._db.commit()
            session = Session(settings)
            self._append(Event("settings", settings.to_dict()), session)
            return session
        session = resume(SessionSettings.from_dict(log[0].data), log[1:])
        self._seq = len(log)
        if not isinstance(session.next(), Verdict):
            self._take(session, Event("resumed", {"attempt": self._job.attempt}))
        return session

    def _interruption(self) -> Event | None:
        if self._lease_lost.is_set():
            raise LeaseLostError
        if self._heard.stop is not None:
            return Event("cancelled", {"code": "probing_stopped", "detail": self._heard.stop})
        if self._heard.cancel:
            return Event("cancelled")
        return Event("deadline") if time.monotonic() >= self._deadline else None

    def _take(self, session: Session, event: Event) -> None:
        session.observe(event)
        self._append(event, session)
        if event.type == "cancelled":
            self._ended_by = event

    def _append(self, event: Event, session: Session) -> None:
        heard = repository.append(
            self._log,
            self._job,
            self._seq,
            event,
            progress=session.progress,
            phase=session.phase,
            lease_s=self._settings.lease_s,
        )
        if heard is None:
            raise LeaseLostError
        self._seq += 1
        self._heard = heard

    async def _keep_lease(self) -> None:
        """Renew the lease while a long probe is on its way; a probe's own append renews it, too."""
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            if not await asyncio.to_thread(self._renew):
                self._lease_lost.set()
                return

    def _renew(self) -> bool:
        """Renew the lease, and hear of a cancellation or a stop, too: a probe may take long."""
        try:
            with DbSession(self._engine) as db:
                held = repository.renew(db, self._job.id, self._job.attempt, self._settings.lease_s)
                self._heard = repository.heard(db, self._job.id)
                db.commit()
        except OperationalError:
            return True  # Unknown, not lost: the next append will tell.
        return held

    def _give_back(self) -> SliceEnd:
        self._fenced(lambda: repository.release(self._db, self._job.id, self._job.attempt))
        return "again"

    def _end(self, verdict: Verdict) -> SliceEnd:
        self._db.add(
            JobVerdict(
                job_id=self._job.id,
                outcome=verdict.outcome,
                baseline_ms=verdict.baseline_ms,
                document=verdict.to_dict(),
            )
        )
        logger.info("job %s: %s", self._job.id, verdict.summary)
        state = "succeeded" if self._ended_by is None else "cancelled"
        return self._finish(state, None, outcome=verdict.outcome)

    def _fail(self, code: str, detail: str) -> SliceEnd:
        logger.warning("job %s: failed, %s: %s", self._job.id, code, detail)
        return self._finish("failed", {"code": code, "detail": detail})

    def _finish(self, state: str, error: dict[str, str] | None, *, outcome: str | None = None) -> SliceEnd:
        """The last state, the verdict, what is counted of the job and whom it tells: one transaction."""

        def write() -> bool:
            if not repository.finish(self._db, self._job.id, self._job.attempt, state, error):
                return False
            accounts.count_end(self._db, state, outcome)
            accounts.count_probes(self._db, self._job.id, self._replica.document["limits"]["probes_per_second"])
            outcomes.announce(self._db, [self._job.id])
            return True

        self._fenced(write)
        return "ended"

    def _fenced(self, write: Callable[[], bool]) -> None:
        """Commit a state change, or nothing when the lease is lost."""
        if not write():
            self._db.rollback()
            raise LeaseLostError
        self._db.commit()


def _as_error(stop: Event) -> dict[str, str]:
    return {
        "code": stop.data.get("code", "cancelled"),
        "detail": stop.data.get("detail", "the job was cancelled before its first probe"),
    }
