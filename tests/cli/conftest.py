"""A running service for the client commands: real HTTP, and a worker when a test wants one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs.models import Job
from app.jobs.runner import run_slice
from app.main import create_app
from app.settings import Settings
from tests.cli.support import Outcome, run
from tests.conftest import replica_document

STOP_S = 30.0


@dataclass(frozen=True)
class Service:
    """The API on a loopback port, with an operate key."""

    url: str
    key: str

    def run(self, *words: object) -> Outcome:
        """Run a client command against it."""
        return run(*words, "--url", self.url, "--key", self.key)

    def call(self, method: str, path: str, document: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self.key}"}
        response = httpx.request(method, self.url + path, json=document, headers=headers, trust_env=False)
        response.raise_for_status()
        is_json = response.headers["content-type"] == "application/json"
        return response.json() if is_json else response.text

    def register(self, replica: EmulatedReplica, **changes: Any) -> dict[str, Any]:
        registered: dict[str, Any] = self.call("POST", "/replicas", replica_document(replica, **changes))
        return registered


@pytest.fixture
def service(settings: Settings, keys: dict[str, str]) -> Iterator[Service]:
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="warning", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # requests wait in it until the server takes them
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield Service(f"http://127.0.0.1:{listening.getsockname()[1]}", keys["operate"])
        finally:
            server.should_exit = True
            thread.join(STOP_S)
    assert not thread.is_alive()


@pytest.fixture
def worker(engine: Engine, settings: Settings) -> Iterator[None]:
    """Takes up queued jobs in a thread, as a worker process would."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.02):
            with Session(engine) as db:
                queued = db.scalars(select(Job.id).where(Job.state == "queued")).all()
            for job_id in queued:
                while run_slice(engine, settings, job_id) == "again":
                    pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(STOP_S)
    assert not thread.is_alive()
