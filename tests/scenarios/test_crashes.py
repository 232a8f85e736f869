"""A killed worker, a restarted Redis and a restarted PostgreSQL in the middle of a job: it ends with one verdict.

The whole service runs as `faultsense up` starts it: API, worker, tick, embedded PostgreSQL and Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from app.cli.stack import Stack
from app.emulator.replica import EmulatedReplica
from app.localization.replay import replay_lines
from tests.conftest import replica_document
from tests.support.waiting import until

pytestmark = pytest.mark.slow

FAULTS = ("gpu:5*4", "path:1-14+20ms")
EXPECTED = ["gpu:5", "path:1-14"]
REQUEST = {"k": 4, "repeats": 3, "prompt_tokens": 1, "decode_tokens": 11}
Job = dict[str, Any]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The service, with short leases so that a lost worker is noticed soon."""
    with Stack(settings={"lease_s": "3", "sweep_s": "1", "requeue_after_s": "3", "slice_s": "90"}) as running:
        yield running


@pytest.fixture(scope="module")
def replica() -> Iterator[EmulatedReplica]:
    with EmulatedReplica(gpus=16, hosts=2, faults=FAULTS, fixed_ms=1, compute_ms=0.5) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client() as client:
        yield client


def start_job(client: httpx.Client, replica: EmulatedReplica) -> str:
    registered = client.post("/replicas", json=replica_document(replica)).json()
    accepted = client.post(registered["links"]["localize"], json=REQUEST)
    assert accepted.status_code == 202, accepted.text
    return str(accepted.headers["Location"])


def read(client: httpx.Client, url: str) -> Job:
    """A job; while PostgreSQL is away the answer is a 503 problem, never anything else."""
    answer = client.get(url)
    if answer.status_code == 503:
        assert answer.json()["code"] == "database_unavailable"
        return {}
    assert answer.status_code == 200, answer.text
    job: Job = answer.json()
    return job


def under_way(client: httpx.Client, url: str) -> None:
    """Until the job is in the middle of its first phase."""
    until(lambda: read(client, url)["progress"]["done"] >= 10)
    assert read(client, url)["state"] == "running"


def ended(client: httpx.Client, url: str) -> Job:
    return until(lambda: (job := read(client, url)).get("state") not in {None, "queued", "running"} and job)  # type: ignore[no-any-return]


def assert_one_right_verdict(stack: Stack, client: httpx.Client, job: Job) -> list[str]:
    """The verdict is the undisturbed one, it is there once, and the log replays to it; returns the event types."""
    assert job["state"] == "succeeded", job
    named = [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in job["verdict"]["suspects"]]
    assert named == EXPECTED, job["verdict"]
    lines = client.get(job["links"]["log"]).text.splitlines()
    assert replay_lines(lines).identical
    with psycopg.connect(stack.services.database_url.replace("+psycopg", "")) as connection:
        counted = connection.execute("SELECT count(*) FROM verdicts WHERE job_id = %s", [job["id"]]).fetchone()
    assert counted == (1,)
    return [line.split('"type": "')[1].split('"')[0] for line in lines]


def test_undisturbed(stack: Stack, client: httpx.Client, replica: EmulatedReplica) -> None:
    job = ended(client, start_job(client, replica))
    assert "resumed" not in assert_one_right_verdict(stack, client, job)


def test_a_killed_worker(stack: Stack, client: httpx.Client, replica: EmulatedReplica) -> None:
    url = start_job(client, replica)
    under_way(client, url)
    stack.kill("worker")
    stack.start("worker")
    job = ended(client, url)
    assert "resumed" in assert_one_right_verdict(stack, client, job)
    assert job["attempt"] >= 2


def test_a_restarted_redis(stack: Stack, client: httpx.Client, replica: EmulatedReplica) -> None:
    url = start_job(client, replica)
    under_way(client, url)
    stack.services.redis.kill()
    stack.services.redis.start()
    assert_one_right_verdict(stack, client, ended(client, url))
    assert_one_right_verdict(stack, client, ended(client, start_job(client, replica)))


def test_a_restarted_postgres(stack: Stack, client: httpx.Client, replica: EmulatedReplica) -> None:
    url = start_job(client, replica)
    under_way(client, url)
    stack.services.postgres.kill()
    stack.services.postgres.start()
    # It is back at once: the worker reconnects between two probes, or loses its lease and resumes.
    assert_one_right_verdict(stack, client, ended(client, url))


def test_a_job_accepted_while_redis_is_away_is_not_lost(
    stack: Stack, client: httpx.Client, replica: EmulatedReplica
) -> None:
    stack.services.redis.kill()
    url = start_job(client, replica)
    assert client.get("/readyz").status_code == 503
    stack.services.redis.start()
    assert_one_right_verdict(stack, client, ended(client, url))


def test_cancelled_within_one_probe(stack: Stack, client: httpx.Client, replica: EmulatedReplica) -> None:
    url = start_job(client, replica)
    under_way(client, url)
    assert client.post(f"{url}/cancel").status_code == 202
    seen = read(client, url)["progress"]["done"]
    job = ended(client, url)
    assert job["state"] == "cancelled"
    assert job["progress"]["done"] <= seen + 1


def test_a_worker_that_is_told_to_stop_gives_its_job_back(
    stack: Stack, client: httpx.Client, replica: EmulatedReplica
) -> None:
    """Rolling restart: the job is free at once, so that nobody waits for a lease and nothing counts as a crash."""
    before = recoveries(stack)
    url = start_job(client, replica)
    under_way(client, url)
    stack.stop("worker")
    with psycopg.connect(stack.services.database_url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT state, lease_until FROM jobs WHERE id = %s", [url.rsplit("/")[-1]])
        assert found.fetchone() == ("running", None)
    stack.start("worker")
    job = ended(client, url)
    assert "resumed" in assert_one_right_verdict(stack, client, job)
    assert recoveries(stack) == before


def recoveries(stack: Stack) -> float:
    """Jobs that were taken up after a worker went silent."""
    with psycopg.connect(stack.services.database_url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT value FROM counters WHERE name = 'lease_recoveries_total'").fetchone()
    return row[0] if row else 0.0
