"""The API against its own document: schemathesis over every operation, with good and with broken requests."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from schemathesis.config import SchemathesisConfig
from schemathesis.openapi.checks import RejectedPositiveData  # noqa: F401
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.emulator.replica import EmulatedReplica
from app.main import create_app

EXAMPLES = 15
TOPOLOGY = {"gpus": [{"rank": rank, "host": f"host-{rank // 4}"} for rank in range(8)]}


def _config() -> SchemathesisConfig:
    config = SchemathesisConfig(seed=1)
    config.projects.default.generation.update(max_examples=EXAMPLES, deterministic=True, database="none")
    return config


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(), config=_config())


@pytest.fixture
def stored(
    localize: Callable[..., dict[str, Any]], client: TestClient, emulated: EmulatedReplica
) -> dict[str, uuid.UUID]:
    """Ids that exist: a replica with a topology, and a job on it that ended with a verdict."""
    emulated.set_faults(["gpu:5*4"])
    job = localize(emulated)
    assert job["verdict"]["outcome"] == "localized"
    assert client.put(f"/replicas/{job['replica_id']}/topology", json=TOPOLOGY).status_code == 200
    return {"replica_id": uuid.UUID(job["replica_id"]), "job_id": uuid.UUID(job["id"])}


@schema.parametrize()
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_answer_is_declared(
    case: schemathesis.Case, keys: dict[str, str], stored: dict[str, uuid.UUID]
) -> None:
    _hit(case, stored)
    case.call_and_validate(
        headers={"Authorization": f"Bearer {keys['admin']}"}, excluded_checks=[positive_data_acceptance]
    )


def _hit(case: schemathesis.Case, stored: dict[str, uuid.UUID]) -> None:
    """Let two of three well-formed ids be one that exists."""
    for name, value in (case.path_parameters or {}).items():
        try:
            number = uuid.UUID(value).int
        except (ValueError, AttributeError, TypeError):
            continue
        if number % 3:
            case.path_parameters[name] = str(stored[name])
