"""The ASGI application: wiring only."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app import __version__
from app.analyzing import endpoints as analyzing
from app.audit import endpoints as audit
from app.health import endpoints as health
from app.jobs import endpoints as jobs
from app.keys import endpoints as keys
from app.kit import problems, transaction
from app.kit.middleware import BodyLimit, RequestId, Unexpected
from app.metrics import endpoints as metrics
from app.metrics.requests import Observed
from app.probing_stops import endpoints as probing_stops
from app.replicas import endpoints as replicas
from app.selection_windows import endpoints as selection_windows
from app.settings import Settings, get_settings
from app.topology import endpoints as topology
from app.webhooks import endpoints as webhooks

DESCRIPTION = """
Finds which GPU, which path between GPUs, or what several GPUs share makes a Mixture-of-Experts serving replica
slow: it probes the replica's own vLLM endpoints and times the answers.

1. `POST /replicas` registers a replica: its probe endpoints and the manifest of its probe model.
2. `POST /replicas/{id}/localize` starts a job; poll the `Location` it answers with.
3. `GET /jobs/{id}` has the verdict, with its evidence and what stays open.
4. `POST /webhooks` registers a URL that is told when a job ends, in signed events.
5. `POST /analyses` judges measurements that other tools made.

Send an API key (`faultsense keys create`) as a bearer token. Errors are RFC 9457 problem details.
"""


# A key that was entered stays over reloads, and every operation is ready to be tried.
SWAGGER = {"persistAuthorization": True, "tryItOutEnabled": True, "displayRequestDuration": True}


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the application.

    Parameters
    ----------
    settings : Settings, optional
        For its body limit; the environment's when left out.
    """
    limits = settings or get_settings()
    # Swagger UI comes from local files: operators' networks are often closed.
    app: FastAPI = FastAPIOffline(
        title="FaultSense",
        version=__version__,
        description=DESCRIPTION,
        redoc_url=None,
        swagger_ui_parameters=SWAGGER,
    )
    problems.install(app)
    transaction.install(app)
    app.add_middleware(Unexpected)  # innermost: a bug's answer has an id and is counted, too
    app.add_middleware(BodyLimit, max_bytes=limits.max_body_bytes, max_upload_bytes=limits.max_upload_bytes)
    app.add_middleware(Observed)
    app.add_middleware(RequestId)
    for feature in (
        replicas,
        topology,
        jobs,
        selection_windows,
        analyzing,
        probing_stops,
        webhooks,
        keys,
        audit,
        health,
        metrics,
    ):
        app.include_router(feature.router)
    app.include_router(jobs.urgent)
    return app
