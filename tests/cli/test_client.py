"""localize and jobs watch against a running service."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from app.cli.client import describe
from app.emulator.replica import EmulatedReplica
from tests.cli.conftest import Service
from tests.cli.support import refused, run
from tests.conftest import FAST

QUICK = ("--k", 4, "--repeats", 1, "--decode-tokens", 8)


def test_localize_by_name_waits_for_the_verdict(service: Service, worker: None, tmp_path: Path) -> None:
    """A rank that refuses connections: a verdict that no busy machine can change."""
    with EmulatedReplica(gpus=4, rank_choice="url", faults=("gpu:2!error",), **FAST) as replica:
        name = service.register(replica)["name"]
        result = service.run("localize", name, "--json")
    assert result.status == 0
    job = result.document
    assert job["state"] == "succeeded"
    assert [(s["kind"], s["members"]) for s in job["verdict"]["suspects"]] == [("gpu", [2])]
    log = tmp_path / "job.jsonl"
    log.write_text(service.call("GET", job["links"]["log"]))
    replayed = run("replay", log, "--json")
    assert replayed.status == 0
    assert replayed.document == {"identical": True, "verdict": job["verdict"]}
    in_words = service.run("jobs", "watch", job["id"])
    assert in_words.status == 0
    first, second, *others = in_words.out.splitlines()
    assert first.startswith("localized: ")
    assert second.split()[0] == "gpu:2"
    assert "does not answer" in second
    assert any("probes" in line and "measurements" in line for line in others)


def test_a_verdict_in_words_names_evidence_masking_and_limits() -> None:
    suspect = {"kind": "gpu", "members": [5], "slowdown": 4.0, "confidence": 0.92}
    verdict = {
        "outcome": "localized",
        "summary": "gpu:5 slows its probes",
        "suspects": [suspect | {"accusing": list(range(9)), "acquitting": []}],
        "masked": ["path:5-*"],
        "untested": ["path:1-2"],
        "reasons": [{"code": "deadline", "text": "time is up"}],
        "cost": {"probes": 9, "measurements": 27, "path_units": 1, "seconds": 2.5},
        "detectable": {"gpu": 1.3, "path": None, "delay_ms": None},
    }
    assert describe({"verdict": verdict}) == [
        "localized: gpu:5 slows its probes",
        "  gpu:5          4.00x            confidence 0.92  accused by probes 0, 1, 2, 3, 4, 5 and 3 more;"
        " acquitted by none",
        "  hidden behind it: path:5-*",
        "  not tested: path:1-2",
        "  deadline: time is up",
        "  9 probes, 27 measurements, 2.5 s of probing",
        "  could see a GPU from 1.3x, no path, at best",
    ]


def test_dry_run_shows_the_plan_and_starts_nothing(service: Service, emulated: EmulatedReplica) -> None:
    registered = service.register(emulated)
    name = registered["name"]
    result = service.run("localize", registered["id"], *QUICK, "--dry-run", "--json")
    assert result.status == 0
    plan = result.document
    assert (plan["probes"], plan["lower_bound"], plan["measurements"]) == (6, 6, 6)
    assert plan["settings"]["k"] == 4
    words = service.run("localize", name, *QUICK, "--dry-run")
    assert words.out.startswith("faultsense: 6 probes to certify it healthy (lower bound 6), 6 measurements")
    assert service.call("GET", "/jobs")["items"] == []


def test_detach_then_watch(service: Service, emulated: EmulatedReplica, request: pytest.FixtureRequest) -> None:
    name = service.register(emulated)["name"]
    detached = service.run("localize", name, *QUICK, "--detach", "--json")
    assert detached.status == 0
    assert detached.document["state"] == "queued"
    job_id = detached.document["id"]
    refused(service.run("localize", name, *QUICK), "busy", job_id, "409")
    request.getfixturevalue("worker")
    watched = service.run("jobs", "watch", job_id, "--json")
    assert watched.status == 0
    assert watched.document["id"] == job_id
    assert watched.document["verdict"] is not None
    again = service.run("localize", name, *QUICK, "--detach")
    assert uuid.UUID(again.out.removeprefix("job ").strip())


def test_a_job_without_a_verdict_has_exit_status_1(service: Service, emulated: EmulatedReplica) -> None:
    name = service.register(emulated)["name"]
    job_id = service.run("localize", name, "--detach", "--json").document["id"]
    service.call("POST", f"/jobs/{job_id}/cancel")
    watched = service.run("jobs", "watch", job_id)
    assert watched.status == 1
    assert watched.out == "cancelled: no verdict (cancelled)\n"
    assert service.run("jobs", "watch", job_id, "--json").document["state"] == "cancelled"


def test_a_replica_of_another_model_fails_with_the_reason(
    service: Service, worker: None, emulated: EmulatedReplica
) -> None:
    registered = service.register(emulated, manifest={**emulated.manifest, "model": "another"})
    result = service.run("localize", registered["id"], *QUICK)
    assert result.status == 1
    assert result.out.startswith("failed: ")
    assert "model_mismatch" in result.out
    assert "Traceback" not in result.err


def test_what_the_service_refuses(service: Service, emulated: EmulatedReplica) -> None:
    name = service.register(emulated)["name"]
    refused(service.run("localize", "nobody", *QUICK), "no replica is called 'nobody'")
    refused(service.run("localize", uuid.uuid4(), *QUICK), "there is no replica", "404")
    refused(service.run("jobs", "watch", uuid.uuid4()), "there is no job", "404")
    refused(service.run("localize", name, "--k", 9), "body.k", "422")
    refused(service.run("localize", name, "--alpha", 0.5), "body.alpha", "422")
    refused(service.run("localize", name, "--strategy", "guess"), "body.strategy", "422")
    stranger = ("--url", service.url, "--key", "fs_stranger")
    refused(run("localize", name, *stranger), "401 unauthorized", "faultsense keys create")
    refused(run("jobs", "watch", uuid.uuid4(), *stranger), "401 unauthorized")


def test_a_name_on_a_later_page_is_found(
    service: Service, emulated: EmulatedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.client.PAGE", 2)
    names = [service.register(emulated)["name"] for _ in range(5)]
    assert service.run("localize", names[0], *QUICK, "--dry-run", "--json").status == 0
    refused(service.run("localize", "nobody", *QUICK), "no replica is called")


def test_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for words in (("localize", "x"), ("jobs", "watch", uuid.uuid4())):
        refused(run(*words, "--key", "k", "--url", f"http://127.0.0.1:{port}"), "cannot be reached", str(port))


@pytest.fixture
def something_else() -> Iterator[str]:
    """A web server that answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path.startswith("/replicas") else 500)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"<h1>")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_is_not_faultsense(something_else: str) -> None:
    there = ("--key", "k", "--url", something_else)
    refused(run("localize", "x", *there), "does not answer as a FaultSense service")
    refused(run("jobs", "watch", uuid.uuid4(), *there), "the service answers 500")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--url", "127.0.0.1:8000", "http://"),
        ("--url", "http://127.0.0.1:port", "--url"),
        ("--url", "http://127.0.0.1:99999", "cannot be reached"),
        ("--key", "fs_é", "--key"),
        ("--key", "fs_x\n", "--key"),
    ],
)
def test_options_that_cannot_be_right(option: str, value: str, words: str) -> None:
    others = {"--url": "http://127.0.0.1:1", "--key": "k"} | {option: value}
    refused(run("localize", "x", *(word for pair in others.items() for word in pair)), words)
