"""The API against its own document: schemathesis over every operation, with good and with broken requests."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.kit.auth import create_key
from app.main import create_app
from app.selection_windows.schemas import SelectionWindowIn
from tests.conftest import FAST, replica_document

# 200 in the long form: FAULTSENSE_EXAMPLES=200 make test ARGS=tests/api/test_schemathesis.py
EXAMPLES = int(os.environ.get("FAULTSENSE_EXAMPLES", "8"))
GPUS = 4
TOPOLOGY = {"gpus": [{"rank": rank, "host": f"host-{rank // 2}"} for rank in range(GPUS)]}
WINDOW = SelectionWindowIn.model_json_schema()["examples"][0]
QUICK = {"k": 2, "decode_tokens": 6}


def _config() -> SchemathesisConfig:
    config = SchemathesisConfig(seed=1)
    config.projects.default.generation.update(
        max_examples=EXAMPLES,
        deterministic=True,
        database="none",
        # Unknown query parameters are ignored, as everywhere on the web; unknown fields of a body are refused.
        allow_extra_parameters=False,
    )
    return config


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(), config=_config())


@pytest.fixture(scope="module")
def small() -> Iterator[EmulatedReplica]:
    """A job on it measures a few probes, meets a rank that refuses, and ends: quick."""
    with EmulatedReplica(gpus=GPUS, hosts=2, rank_choice="url", faults=("gpu:3!error",), **FAST) as replica:
        yield replica


@pytest.fixture
def stored(
    localize: Callable[..., dict[str, Any]],
    client: TestClient,
    keys: dict[str, str],
    small: EmulatedReplica,
    db: Session,
) -> dict[str, uuid.UUID]:
    """Ids that exist: a replica with a topology, its ended job, a key that nobody uses, a webhook's delivery."""
    job = localize(small, QUICK)
    assert job["verdict"]["suspects"], job
    assert client.put(f"/replicas/{job['replica_id']}/topology", json=TOPOLOGY).status_code == 200
    spare, _ = create_key(db, "spare", "read")
    db.commit()
    admin = {"Authorization": f"Bearer {keys['admin']}"}
    hook = client.post("/webhooks", json={"url": "https://hooks.test/"}, headers=admin).json()
    sent = client.post(hook["links"]["test"]).json()
    windows = f"/replicas/{job['replica_id']}/selection-windows"
    window = client.post(windows, json=WINDOW).json()
    return {
        "replica_id": uuid.UUID(job["replica_id"]),
        "job_id": uuid.UUID(job["id"]),
        "key_id": spare.id,
        "webhook_id": uuid.UUID(hook["id"]),
        "window_id": uuid.UUID(window["id"]),
        "delivery_id": uuid.UUID(sent["id"]),
    }


# One database an operation, not one an example: what earlier examples left behind is part of the test.
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def every_answer_is_declared(
    case: schemathesis.Case, keys: dict[str, str], stored: dict[str, uuid.UUID], small: EmulatedReplica
) -> None:
    _use_stored_ids(case, stored)
    _make_consistent(case, small)
    case.call_and_validate(
        headers={"Authorization": f"Bearer {keys['admin']}"},
        # A schema cannot say that a manifest fits its replica, that a name is free, or what a cursor looks like;
        # such requests are schema-valid and answer 422. Every other check is on.
        excluded_checks=[positive_data_acceptance],
    )


def _use_stored_ids(case: schemathesis.Case, stored: dict[str, uuid.UUID]) -> None:
    """Let most well-formed ids be ones that exist."""
    for name, value in (case.path_parameters or {}).items():
        try:
            number = uuid.UUID(value).int
        except (ValueError, AttributeError, TypeError):
            continue
        if number % 4:
            case.path_parameters[name] = str(stored[name])


def _make_consistent(case: schemathesis.Case, replica: EmulatedReplica) -> None:
    """Give most well-formed bodies the parts that no schema can describe, so that some are accepted."""
    if (
        case.meta is None
        or case.meta.generation.mode is GenerationMode.NEGATIVE
        or not isinstance(case.body, dict)
    ):
        return
    digest = zlib.crc32(json.dumps(case.body, sort_keys=True).encode())
    if digest % 4 == 0:
        return
    if case.operation.label == "POST /replicas":
        known = replica_document(replica, name=f"generated-{digest}")
        case.body = {**case.body, **{name: known[name] for name in known if name != "limits"}}
        case.body.pop("ca_pem", None)
    elif "webhooks" in case.operation.path:
        known = {"url": "https://hooks.test/", "secret": None}
        case.body = {**case.body, **{name: known[name] for name in known if name in case.body}}
    elif case.operation.label.endswith("/selection-windows"):
        case.body = {**case.body, **{name: WINDOW[name] for name in ("records", "rails", "before", "unit")}}
        case.body["after"] = WINDOW["after"] if digest % 3 else case.body["after"]
    elif case.operation.label.endswith("/topology"):
        places = case.body["gpus"]
        case.body = {
            "gpus": [{**places[rank % len(places)], "rank": rank, "device": None} for rank in range(GPUS)]
        }


# A test function an operation: pytest-xdist drops tests of the same name, as one function for all would have.
for _operation in schema.get_all_operations():
    _id = _operation.ok().definition.raw["operationId"]
    globals()[f"test_{_id}"] = schema.include(operation_id=_id).parametrize()(every_answer_is_declared)
