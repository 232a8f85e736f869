"""The emulated server: what a prober uses of vLLM's HTTP interface, and on the probe server /emulator."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from app.emulator.completion import ModelLimits
from app.emulator.config import EmulatorConfig
from app.emulator.endpoint import CompletionsEndpoint
from app.emulator.engine import Engine
from app.emulator.errors import ApiError
from app.emulator.metrics import CONTENT_TYPE, metrics_text
from app.emulator.replies import VERSION, TokenTexts
from app.emulator.sharing import SharedGpus
from app.probe_model.manifest import Manifest
from app.probe_model.vocabulary import VOCABULARY_MULTIPLE

RANK_HEADER = b"x-data-parallel-rank"


def make_engine(config: EmulatorConfig, manifest: Manifest, gpus: SharedGpus | None = None) -> Engine:
    """Return the engine of a probe server, its initial faults set."""
    engine = Engine(
        config.latency_model(),
        manifest.receivers,
        max_num_seqs=config.max_num_seqs or manifest.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or manifest.max_num_batched_tokens,
        max_num_queued=config.max_num_queued,
        recovery_s=config.recovery_s,
        errors_in_step=config.rank_choice == "header",
        flap_period_s=config.flap_period_s,
        gpus=gpus,
    )
    engine.set_faults(config.parsed_faults())
    return engine


def make_app(
    engine: Engine, manifest: Manifest, ports: Mapping[int, int | None], more: Sequence[Route] = ()
) -> Starlette:
    """Return the ASGI application.

    Parameters
    ----------
    engine : Engine
        Runs the requests.
    manifest : Manifest
        Of the served model.
    ports : mapping of int to int or None
        Port -> the rank that answers there; None where the rank header decides.
    more : sequence of Route
        Beside vLLM's.
    """
    highest = max([*manifest.gpu_tokens, *manifest.pattern_tokens.values()])
    vocabulary_size = (highest // VOCABULARY_MULTIPLE + 1) * VOCABULARY_MULTIPLE
    limits = ModelLimits(manifest.model, vocabulary_size, manifest.max_model_len)

    def choose_rank(scope: Scope) -> int | None:
        rank = ports.get(scope["server"][1])
        return _header_rank(scope, len(engine.ranks)) if rank is None else rank

    completions = CompletionsEndpoint(engine, limits, TokenTexts(manifest), choose_rank)
    handlers = _Handlers(engine, manifest)
    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", handlers.models),
            Route("/version", handlers.version),
            Route("/health", handlers.health),
            Route("/load", handlers.load),
            Route("/metrics", handlers.metrics),
            *more,
        ]
    )


def _header_rank(scope: Scope, ranks: int) -> int | None:
    value = next((value for name, value in scope["headers"] if name == RANK_HEADER), None)
    if value is None:
        return None
    try:
        rank = int(value)
    except ValueError:  # silently ignored, as vLLM does
        return None
    if not 0 <= rank < ranks:
        raise ApiError(400, f"data_parallel_rank {rank} is out of range [0, {ranks}).")
    return rank


class _Handlers:
    """Everything but completions."""

    def __init__(self, engine: Engine, manifest: Manifest) -> None:
        self._engine = engine
        self._manifest = manifest
        self._created = int(time.time())

    async def models(self, _: Request) -> Response:
        permission = {
            "id": "modelperm-emulated",
            "object": "model_permission",
            "created": self._created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self._manifest.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._manifest.model,
            "parent": None,
            "max_model_len": self._manifest.max_model_len,
            "permission": [permission],
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self._engine.healthy else 503)

    async def load(self, _: Request) -> Response:
        return JSONResponse({"server_load": self._engine.unfinished})

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(metrics_text(self._engine, self._manifest.model), media_type=CONTENT_TYPE)
