"""HTTP of metrics: with a key on the API's port, without one on a private port of its own."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest, start_http_server

from app.kit.auth import require
from app.kit.problems import responses
from app.metrics.collector import ServiceCollector
from app.metrics.requests import registry

router = APIRouter(tags=["health"])
registry.register(ServiceCollector())


@router.get(
    "/metrics",
    operation_id="getMetrics",
    dependencies=[Depends(require("read"))],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"},
        **responses(),
    },
)
def metrics() -> Response:
    """Metrics for Prometheus. No label holds an id."""
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def serve_privately(host: str, port: int) -> None:
    """Serve the same without a key, in a thread of its own: for a port that only Prometheus reaches."""
    start_http_server(port, addr=host, registry=registry)
