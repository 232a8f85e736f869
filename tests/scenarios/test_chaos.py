"""Many jobs on four replicas while everything is killed at random, again and again.

Every job ends with one verdict, the undisturbed run's or an honest `inconclusive`; every event reaches its
receiver, once by id; nothing is lost and nothing doubled. The kills come from a seed; which probe they hit does
not, since processes run at their own pace.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from app.cli.stack import Stack
from app.emulator.replica import EmulatedReplica
from app.localization.replay import replay_lines
from tests.conftest import FAST, replica_document
from tests.webhooks.conftest import Hook

pytestmark = pytest.mark.slow

SEED = 7
SECONDS = 220.0 if os.environ.get("FAULTSENSE_CHAOS") != "long" else 600.0
# Faults far above the noise, which is large here: processes that start on a small machine hold the others up for
# tens of milliseconds. What chaos may change is when something is measured, not what is true.
FAULTS = ((), ("gpu:5*40",), ("path:1-6+60ms",), ("gpu:2*40", "path:0-7+60ms"))
# A slow GPU slows the steps of probes without it, too (its idle dummy step), so its probes are four times slower
# at most, on a floor far above the noise; a slow path shows without such a floor, and in full.
ALPHAS = (6.0, 2.5, 6.0, 2.5)
# Fewer where probes of slow parts take long. FAULTSENSE_CHAOS=long runs a hundred jobs, in about four minutes.
LONG = os.environ.get("FAULTSENSE_CHAOS") == "long"
JOBS = (50, 20, 20, 10) if LONG else (18, 8, 9, 5)
REQUEST = {"k": 4, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 8, "deadline_s": 200}
SETTINGS = {
    "lease_s": "2",
    "sweep_s": "1",
    "requeue_after_s": "2",
    "webhook_tick_s": "1",
    "webhook_schedule_s": "[0, 1, 1, 1, 2, 2, 2, 5, 5, 5, 5, 5, 5, 5]",
    "webhook_networks": '["127.0.0.0/8"]',
}
Job = dict[str, Any]


@pytest.fixture
def replicas() -> Iterator[list[EmulatedReplica]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmulatedReplica(gpus=8, hosts=2, faults=f, **FAST)) for f in FAULTS]


class Chaos:
    """Kills one thing after another, and starts it again after a moment, until it is told to stop."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._random = random.Random(seed)
        self._stack = stack
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.killed: Counter[str] = Counter()
        self.error: Exception | None = None

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        names = ["worker", "api", "tick", "redis", "postgres"]
        try:
            while not self._over.wait(self._random.uniform(5.0, 10.0)):
                # Each once before any again, in an order of the seed's.
                if not names:
                    names = ["worker", "api", "tick", "redis", "postgres"]
                self._hit(names.pop(self._random.randrange(len(names))), self._random.uniform(0.0, 1.0))
        except Exception as error:  # the test must hear of it
            self.error = error

    def _hit(self, name: str, away_s: float) -> None:
        server = {"redis": self._stack.services.redis, "postgres": self._stack.services.postgres}.get(name)
        if server is None:
            self._stack.kill(name)
            time.sleep(away_s)
            self._stack.start(name)
        else:
            server.kill()
            time.sleep(away_s)
            server.start()
        self.killed[name] += 1


class Customer:
    """Runs jobs on one replica as a careful client does: the same request again until there is an answer."""

    def __init__(self, stack: Stack, ends: float) -> None:
        self._stack = stack
        self._ends = ends
        self._done = 0

    def run(self, replica: EmulatedReplica, number: int) -> list[Job]:
        with self._stack.client() as client:
            document = replica_document(replica, name=f"replica-{number}")
            made = self._sure(client, lambda: self._post(client, "/replicas", document, f"register-{number}"))
            request = {**REQUEST, "alpha": ALPHAS[number]}
            url = made["links"]["localize"]
            return [self._job(client, url, request, f"{number}-{i}") for i in range(JOBS[number])]

    def _job(self, client: httpx.Client, url: str, request: Job, key: str) -> Job:
        job = self._sure(client, lambda: self._post(client, url, request, key))
        ended = self._sure(client, lambda: self._ended(client, job["id"]))
        self._done += 1
        return ended

    @staticmethod
    def _post(client: httpx.Client, url: str, body: Any, key: str) -> Job | None:
        answer = client.post(url, json=body, headers={"Idempotency-Key": key})
        if answer.status_code in {409, 503}:  # in work under the same key, or the database is away
            return None
        assert answer.status_code in {201, 202}, answer.text
        found: Job = answer.json()
        return found

    @staticmethod
    def _ended(client: httpx.Client, job_id: str) -> Job | None:
        answer = client.get(f"/jobs/{job_id}")
        if answer.status_code == 503:
            return None
        assert answer.status_code == 200, answer.text
        found: Job = answer.json()
        return None if found["state"] in {"queued", "running"} else found

    def _sure(self, client: httpx.Client, ask: Callable[[], Job | None]) -> Job:
        while time.monotonic() < self._ends:
            with suppress(httpx.TransportError):  # the API is away
                if (found := ask()) is not None:
                    return found
            time.sleep(0.05)
        raise AssertionError(f"no answer within {SECONDS} s, after {self._done} jobs")


def named(job: Job) -> list[str]:
    return [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in job["verdict"]["suspects"]]


def test_jobs_through_chaos(replicas: list[EmulatedReplica], hook: Hook) -> None:
    ends = time.monotonic() + SECONDS
    with Stack(workers=4, settings=SETTINGS) as stack:
        with stack.client() as client:
            secret = client.post("/webhooks", json={"url": hook.url}).json()["secret"]
        hook.knows(secret)
        customer = Customer(stack, ends)
        with Chaos(stack, SEED) as chaos, ThreadPoolExecutor(len(replicas)) as pool:
            jobs = [job for found in pool.map(customer.run, replicas, range(len(replicas))) for job in found]
        print(f"killed {dict(chaos.killed)} in {time.monotonic() - ends + SECONDS:.0f} s")  # noqa: T201  with -s
        assert chaos.error is None
        assert len(chaos.killed) == 5, chaos.killed
        _check_jobs(stack, jobs)
        _check_events(hook, jobs, ends)


def _check_jobs(stack: Stack, jobs: list[Job]) -> None:
    assert len({job["id"] for job in jobs}) == sum(JOBS)
    injected = [faults for faults, number in zip(FAULTS, JOBS, strict=True) for _ in range(number)]
    right = 0
    with stack.client() as client:
        stored = [
            job
            for state in ("succeeded", "failed", "cancelled", "expired", "queued", "running")
            for job in client.get("/jobs", params={"state": state, "limit": 500}).json()["items"]
        ]
        assert {job["id"] for job in stored} == {job["id"] for job in jobs}, "a request was doubled or lost"
        assert len(stored) == len(jobs)
        for faults, job in zip(injected, jobs, strict=True):
            expected = [fault.partition("*")[0].partition("+")[0] for fault in faults]
            assert job["state"] == "succeeded", job
            if job["verdict"]["outcome"] == "inconclusive":
                assert job["verdict"]["reasons"], job
                continue
            assert named(job) == expected, job["verdict"]
            right += 1
            assert replay_lines(client.get(f"/jobs/{job['id']}/log").text.splitlines()).identical
    assert right >= 0.9 * len(jobs), f"only {right} of {len(jobs)} verdicts were conclusive"


def _check_events(hook: Hook, jobs: list[Job], ends: float) -> None:
    wanted = {job["id"] for job in jobs}
    while {got["document"]["data"]["id"] for got in hook.received} != wanted and time.monotonic() < ends:
        time.sleep(0.2)
    assert all(got["verified"] == [True] for got in hook.received)
    events = {got["headers"]["webhook-id"]: got["document"]["data"]["id"] for got in hook.received}
    assert Counter(events.values()) == Counter(wanted), "each job's end is one event, however often it was sent"
