"""How reading grows with a job's events and with the jobs in the table, and how long a resume takes."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from scripts.benchmarks.common import Result

EVENTS = (100, 20_000)
JOBS = (1_000, 10_000, 100_000)
ROUNDS = 60

_JOB = """
    INSERT INTO jobs (id, replica_id, state, done, planned, attempt, cancel_requested, request, settings,
                      created_at, started_at, finished_at, deadline_at)
    SELECT {id}, :replica, 'succeeded', 0, 0, 1, false, '{{}}', CAST(:settings AS jsonb),
           now() - {age}, now(), now(), now() {rows}
"""


def store() -> Result:
    """Ratios within one run: a job of 20,000 events against one of 100, pages, lists, the sweep, and a resume."""
    from app.cli.stack import Stack
    from app.kit.db import engine_for

    with Stack(workers=1) as stack, stack.client() as client:
        engine = engine_for(stack.services.database_url)
        replica = client.post("/replicas", json=_registered()).json()["id"]
        jobs = {number: _job_with_events(engine, replica, number) for number in EVENTS}
        result = {
            "get_job": _get_job(client, jobs),
            "probes_pages": _pages(client, jobs[EVENTS[-1]]),
            "resume": _resume(engine, jobs[EVENTS[-1]]),
            "by_jobs_in_the_table": list(_by_jobs(engine, client, replica)),
            "session": [_session(n) for n in (16, 64, 256, 512)],
        }
        engine.dispose()
    return result


def _registered() -> dict[str, Any]:
    from app.probe_model.synthetic import synthetic_manifest

    return {
        "name": "bench",
        "gpus": 300,
        "probe_endpoints": [{"url": "http://127.0.0.1:1", "ranks": "0-299"}],
        "manifest": synthetic_manifest(300).model_dump(mode="json"),
        "layout": {"all2all": "sparse"},
    }


def _log(events: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A real log: a healthy replica of 300 GPUs, as many measurements as wanted."""
    from app.localization.events import measured
    from app.localization.probes import Probe
    from app.localization.session import Session
    from app.localization.settings import Settings

    settings = Settings(gpus=300, k=8, repeats=11)
    session = Session(settings)
    yield "settings", settings.to_dict()
    for number in range(events - 1):
        probe = session.next()
        assert isinstance(probe, Probe)
        event = measured(probe, tbt_ms=10 + number % 7 / 10, ttft_ms=20.0, wall_ms=200.0)
        session.observe(event)
        yield event.type, event.data


def _job_with_events(engine: Any, replica: str, events: int) -> str:
    import json

    from sqlalchemy import text

    job = str(uuid.uuid4())
    log = list(_log(events))
    with engine.begin() as db:
        db.execute(text(_JOB.format(id="CAST(:id AS uuid)", age="interval '1 s'", rows="")), {
            "id": job, "replica": replica, "settings": json.dumps(log[0][1]),
        })  # fmt: skip
        db.execute(
            text(
                "INSERT INTO events (job_id, seq, type, attempt, data)"
                " VALUES (:job, :seq, :type, 1, CAST(:data AS jsonb))"
            ),
            [
                {"job": job, "seq": seq, "type": kind, "data": json.dumps(data)}
                for seq, (kind, data) in enumerate(log)
            ],
        )
    return job


def _seconds(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


def _get_job(client: Any, jobs: dict[int, str]) -> Result:
    """Both jobs in turn, so that both see the same machine."""
    found: dict[int, list[float]] = {number: [] for number in jobs}
    for _ in range(ROUNDS):
        for number, job in jobs.items():
            found[number].append(_seconds(lambda job=job: client.get(f"/jobs/{job}").raise_for_status()))
    medians = {number: statistics.median(values) for number, values in found.items()}
    ms = {str(number): round(1000 * value, 2) for number, value in medians.items()}
    return {"ms": ms, "ratio": round(medians[EVENTS[-1]] / medians[EVENTS[0]], 3), "target": 1.2}


def _pages(client: Any, job: str) -> Result:
    """First, middle and last page of 100 measurements, in turn."""
    cursors: list[str | None] = [None]
    while cursor := client.get(f"/jobs/{job}/probes", params=_at(cursors[-1])).json()["next_cursor"]:
        cursors.append(cursor)
    places = {"first": cursors[0], "middle": cursors[len(cursors) // 2], "last": cursors[-2]}
    found: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(ROUNDS // 2):
        for name, cursor in places.items():
            found[name].append(_seconds(lambda c=cursor: client.get(f"/jobs/{job}/probes", params=_at(c))))
    medians = {name: round(1000 * statistics.median(values), 2) for name, values in found.items()}
    return {"pages": len(cursors), "ms": medians, "last_over_first": round(medians["last"] / medians["first"], 3)}


def _at(cursor: str | None) -> dict[str, str]:
    return {} if cursor is None else {"cursor": cursor}


def _resume(engine: Any, job: str) -> Result:
    """What a worker does when it takes the job up: read the log and fold it into a session; median of 3."""
    from sqlalchemy.orm import Session as DbSession

    from app.jobs import repository
    from app.localization.session import resume
    from app.localization.settings import Settings

    def take_up() -> None:
        with DbSession(engine) as db:
            log = repository.events(db, uuid.UUID(job))
        resume(Settings.from_dict(log[0].data), log[1:])

    return {
        "events": EVENTS[-1],
        "seconds": round(statistics.median(_seconds(take_up) for _ in range(3)), 3),
        "target": 2.0,
    }


def _by_jobs(engine: Any, client: Any, replica: str) -> Iterator[Result]:
    """Lists, filters and the sweep as the table fills; one verdict in ten is `localized`."""
    from sqlalchemy.orm import Session as DbSession

    from app.jobs import service

    def sweep() -> None:
        with DbSession(engine) as db:
            service.sweep(db, 30)

    def get(path: str, **wanted: str) -> Callable[[], object]:
        return lambda: client.get(path, params=wanted).raise_for_status()

    asked = {
        "list": get("/jobs"),
        "list_localized": get("/jobs", outcome="localized"),
        "list_replica": get("/jobs", replica_id=replica),
        "metrics": get("/metrics"),
        "sweep": sweep,
    }
    there = 0
    for jobs in JOBS:
        _fill(engine, replica, jobs - there)
        there = jobs
        ms = {name: 1000 * statistics.median(_seconds(ask) for _ in range(15)) for name, ask in asked.items()}
        yield {"jobs": jobs, "ms": {name: round(value, 2) for name, value in ms.items()}}


def _fill(engine: Any, replica: str, more: int) -> None:
    import json

    from sqlalchemy import text

    jobs = _JOB.format(id="gen_random_uuid()", age="n * interval '1 s'", rows="FROM generate_series(1, :more) n")
    verdicts = """
        INSERT INTO verdicts (job_id, outcome, document)
        SELECT id, CASE WHEN random() < 0.1 THEN 'localized' ELSE 'healthy' END, CAST(:document AS jsonb)
        FROM jobs ON CONFLICT DO NOTHING
    """
    with engine.begin() as db:
        db.execute(text(jobs), {"replica": replica, "settings": "{}", "more": more})
        db.execute(text(verdicts), {"document": json.dumps(_verdict())})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("ANALYZE jobs, verdicts"))


def _verdict() -> dict[str, Any]:
    from app.localization.events import Event
    from app.localization.session import Session
    from app.localization.settings import Settings

    session = Session(Settings(gpus=8, k=4))
    session.observe(Event("cancelled"))
    verdict: Any = session.next()
    return dict(verdict.to_dict())


def _session(n: int) -> Result:
    """Microseconds a measurement inside the session, for a healthy replica of n GPUs."""
    from app.localization.events import measured
    from app.localization.probes import Probe
    from app.localization.session import Session
    from app.localization.settings import Settings

    session = Session(Settings(gpus=n, k=8, repeats=1))
    began, measurements = time.perf_counter(), 0
    while isinstance(probe := session.next(), Probe):
        session.observe(measured(probe, tbt_ms=10 + measurements % 7 / 10, ttft_ms=20.0, wall_ms=200.0))
        measurements += 1
    took = time.perf_counter() - began
    return {"n": n, "k": 8, "measurements": measurements, "us_each": round(1e6 * took / measurements, 1)}
