"""The service when what it stands on is missing, and what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings, get_settings


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """An app whose database and broker do not exist."""
    monkeypatch.setenv("FAULTSENSE_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("FAULTSENSE_REDIS_URL", "redis://127.0.0.1:1/0")
    get_settings.cache_clear()
    yield TestClient(create_app(Settings()), raise_server_exceptions=False)
    get_settings.cache_clear()


def test_a_missing_database_is_a_503_problem(nowhere: TestClient) -> None:
    answer = nowhere.get("/jobs", headers={"Authorization": "Bearer fs_x"})
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert answer.headers["Retry-After"]


def test_readiness_says_what_is_missing(nowhere: TestClient) -> None:
    answer = nowhere.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {
        "database": "cannot be reached",
        "broker": "cannot be reached; jobs wait until it can",
    }
    assert nowhere.get("/livez").json() == {"status": "ok"}


def test_ready_when_everything_is_there(anonymous: TestClient) -> None:
    assert anonymous.get("/readyz").json() == {"ready": True, "checks": {"database": "ok", "broker": "ok"}}


def test_unknown_paths_and_methods_are_problems(anonymous: TestClient) -> None:
    assert anonymous.get("/nothing").json()["code"] == "not_found"
    refused = anonymous.put("/livez")
    assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
    assert refused.headers["content-type"] == "application/problem+json"


def test_request_ids_travel(anonymous: TestClient) -> None:
    assert anonymous.get("/livez", headers={"X-Request-ID": "abc-1"}).headers["X-Request-ID"] == "abc-1"
    odd = anonymous.get("/livez", headers={"X-Request-ID": "a b<script>"}).headers["X-Request-ID"]
    assert len(odd) == 16


def test_swagger_comes_from_local_files(anonymous: TestClient) -> None:
    page = anonymous.get("/docs").text
    assert "https://" not in page.replace("https://fastapi", "")
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert asset in page


@pytest.mark.parametrize(
    ("module", "limit_mb"), [("app.main; app.main.create_app()", 150), ("workers.tasks", 200)]
)
def test_processes_stay_small_and_never_load_torch(settings: Settings, module: str, limit_mb: int) -> None:
    """Resident size after import; the running processes are measured by `scripts/bench.py memory`."""
    name, _, call = module.partition("; ")
    code = (
        f"import {name}\n{call}\nimport sys\nassert 'torch' not in sys.modules\n"
        "print(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')).split()[1])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) / 1024 < limit_mb
