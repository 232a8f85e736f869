"""Which rails carried a job's probes, over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs.models import JobWindow
from app.jobs.runner import run_slice
from app.selection.record import read_records
from app.settings import Settings
from tests.conftest import QUICK, replica_document

Localize = Callable[..., dict[str, Any]]
# 1 prompt token and 8 decoded ones, of a hidden state of the synthetic manifest.
TOKENS = 9


@contextmanager
def forwarded(url: str) -> Iterator[str]:
    """Another way to the same server: what comes in on a port of its own goes there, and back."""
    port = int(url.rsplit(":", 1)[1])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, back), copy(there, writer))
        except ConnectionError:
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.fixture
def two_ways(emulated: EmulatedReplica) -> Iterator[list[dict[str, str]]]:
    (endpoint,) = emulated.endpoints
    with forwarded(endpoint["url"]) as other:
        yield [{**endpoint, "rail": "front-a"}, {**endpoint, "url": other, "rail": "front-b"}]


def test_the_four_questions_are_answered_and_the_fifth_is_refused(
    localize: Localize, client: TestClient, emulated: EmulatedReplica, two_ways: list[dict[str, str]]
) -> None:
    emulated.set_faults([])
    job = localize(emulated, probe_endpoints=two_ways)
    assert job["verdict"]["outcome"] == "healthy"
    found = client.get(job["links"]["selection"]).json()
    assert (found["basis"], found["warm_up_excluded"], found["complete"]) == ("selected, not wire", True, True)
    assert [rail["name"] for rail in found["rails"]] == ["front-a", "front-b"]
    manifest = emulated.manifest
    slice_bytes = TOKENS * manifest["hidden_size"] * {"float32": 4}.get(manifest["dtype"], 2)
    probes = client.get(job["links"]["probes"], params={"limit": 500}).json()["items"]
    sequences = sum(p["sequences"] * len(p["members"]) ** 2 for p in probes)
    assert (
        sum(rail["selected_slices"] for rail in found["rails"]) >= sequences
    )  # a try that is discarded is sent, too
    for rail in found["rails"]:
        assert rail["available"]
        assert rail["selected_bytes"] == rail["selected_slices"] * slice_bytes
    assert sum(rail["share"] for rail in found["rails"]) == pytest.approx(1, abs=1e-5)
    requests = found["allocations"]
    assert requests["total"] == requests["single_path"] + requests["multi_path"]
    assert requests["paths"] == "multi-path"
    assert found["distribution"]["shape"] == "even"
    assert found["windows"] == [{"attempt": 1, "recorded": True, "failure": None}]
    (refused,) = found["refused_questions"]
    assert refused["question"] == "oscillation"
    assert "cannot be read from counters that only add up" in refused["reason"]
    assert all(p["rails"] == [0, 1] for p in probes)


def test_records_are_those_of_the_format_and_agree_with_the_answer(
    localize: Localize, client: TestClient, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    job = localize(emulated)
    answer = client.get(job["links"]["selection"] + ".jsonl")
    assert answer.headers["content-type"] == "application/x-ndjson"
    (pair,) = read_records(answer.text).pairs
    found = client.get(job["links"]["selection"]).json()
    assert pair.record.backend == "faultsense"
    assert pair.record.op_type == "probe"
    assert pair.record.num_threads == QUICK["k"]
    assert pair.record.batch_size == max(QUICK["k"], 2)
    assert [d.selected_bytes for d in pair.record.selection.devices] == [
        r["selected_bytes"] for r in found["rails"]
    ]
    assert pair.target is not None
    assert pair.target.aggregate_transferred_bytes == pair.record.selection.selected_bytes
    assert [json.loads(line)["record_type"] for line in answer.text.splitlines()] == [
        "rdma_selection_metrics",
        "target_metrics",
    ]


def test_every_attempt_is_a_measured_phase_and_one_that_was_lost_says_so(
    client: TestClient, engine: Engine, db: Session, settings: Settings, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    registered = client.post("/replicas", json=replica_document(emulated)).json()
    job = client.post(registered["links"]["localize"], json=QUICK).json()
    short = settings.model_copy(update={"slice_s": 0.02})
    while run_slice(engine, short, uuid.UUID(job["id"])) == "again":
        pass
    found = client.get(job["links"]["selection"]).json()
    attempts = [window["attempt"] for window in found["windows"]]
    assert len(attempts) > 1
    records = read_records(client.get(job["links"]["selection"] + ".jsonl").text)
    assert len(records.pairs) == sum(window["recorded"] for window in found["windows"])
    assert sum(p.record.selection.allocations for p in records.pairs) == found["allocations"]["total"]
    # As if the worker of the first attempt had been killed: what it would have stored at its end is missing.
    row = db.get(JobWindow, (uuid.UUID(job["id"]), attempts[0]))
    db.delete(row)
    db.commit()
    found = client.get(job["links"]["selection"]).json()
    assert found["windows"][0]["failure"] == "its worker ended before the measured phase did"
    assert not found["complete"]


def test_a_failed_phase_leaves_no_record_and_says_why(
    localize: Localize, client: TestClient, emulated: EmulatedReplica
) -> None:
    emulated.set_faults(["gpu:3!error"])
    job = localize(emulated)
    assert job["verdict"]["outcome"] == "inconclusive"
    found = client.get(job["links"]["selection"]).json()
    (window,) = found["windows"]
    assert not window["recorded"]
    assert "engine_failed" in window["failure"]
    assert found["rails"] == []
    assert found["allocations"]["paths"] == "none"
    assert client.get(job["links"]["selection"] + ".jsonl").text == ""


def test_a_queued_job_has_selected_nothing_and_none_is_404(client: TestClient, emulated: EmulatedReplica) -> None:
    registered = client.post("/replicas", json=replica_document(emulated)).json()
    job = client.post(registered["links"]["localize"], json=QUICK).json()
    found = client.get(job["links"]["selection"]).json()
    assert (found["windows"], found["complete"], found["distribution"]["shape"]) == ([], True, "none")
    for path in ("selection", "selection.jsonl"):
        assert client.get(f"/jobs/{uuid.uuid4()}/{path}").status_code == 404


@pytest.mark.parametrize(
    ("rails", "words"),
    [
        ((None, None), "ranks 0-7 are behind two URLs; if these are two ways"),
        (("a", None), "give each its rail"),
        (("a", "a"), "twice behind the rail 'a'"),
    ],
)
def test_two_urls_of_a_rank_need_two_rails(
    client: TestClient, emulated: EmulatedReplica, rails: tuple[str | None, str | None], words: str
) -> None:
    (endpoint,) = emulated.endpoints
    endpoints = [{**endpoint, "rail": rails[0]}, {**endpoint, "url": "http://127.0.0.1:9", "rail": rails[1]}]
    refused = client.post("/replicas", json=replica_document(emulated, probe_endpoints=endpoints))
    assert refused.status_code == 422
    assert words in refused.text
