"""Probe shapes on a real vLLM server of four ranks: what each measures, healthy and with a fault."""

from __future__ import annotations

import asyncio
import math
import os
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import Result

RANKS = (0, 1, 2, 3)
REPEATS = 6
SEQUENCES = 4
FAULTS: dict[str, dict[str, dict[str, float]]] = {
    "healthy": {},
    "path 1-3 +30 ms": {"path:1-3": {"ms": 30}},
    "path 1>3 +30 ms": {"path:1>3": {"ms": 30}},
    # Not the dummy token of an idle rank, which is one row for each of its two experts.
    "gpu 2 +200 ms": {"gpu:2": {"ms": 200, "above_rows": 2}},
}


def shapes_vllm() -> Result:
    """Time between tokens by shape and fault, ms; needs ``VLLM_VENV``, takes about a quarter of an hour.

    Shapes are measured in random order, so that what else the machine does falls on all of them.
    """
    from scripts.vllm_replica import build_probe_model
    from scripts.vllm_server import VllmServer

    venv = Path(os.environ["VLLM_VENV"])
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        build_probe_model(venv, model, len(RANKS))
        with VllmServer(venv, model) as server:
            found = {}
            for name, faults in FAULTS.items():
                server.set_faults(faults)
                found[name] = asyncio.run(_measure(server.url, model))
    return found


def _shapes() -> dict[str, Any]:
    from app.localization.shapes import Exchange, Shift

    ring = (RANKS,)
    return {
        **{f"shift {s}": Shift(ring, (s,), SEQUENCES) for s in (1, 2, 3)},
        "ring 0-1-3-2": Shift(((0, 1, 3, 2),), (1,), SEQUENCES),
        "full digraph": Shift(ring, (1, 2, 3), SEQUENCES),
        "self-loops": Exchange(RANKS, width=SEQUENCES),
        "pair 1-3, others self": Exchange(RANKS, ((1, 3),), SEQUENCES),
        "pair 1-3, others parked": Exchange((1, 3), ((1, 3),), SEQUENCES),
        "rank 2 alone": Exchange((2,), width=SEQUENCES),
    }


async def _measure(url: str, model: Path) -> dict[str, Any]:
    from app.localization.probes import Probe
    from app.localization.settings import Settings
    from app.outbound import Guard, parse_url
    from app.probe_model.manifest import load_manifest
    from app.probing.access import ProbeEndpoint, ReplicaAccess
    from app.probing.budget import Budget
    from app.probing.prober import Prober

    manifest = load_manifest(model)
    endpoints = [ProbeEndpoint(parse_url(url), RANKS, "header")]
    access = ReplicaAccess(manifest.model, manifest.gpu_tokens, endpoints, Guard(["127.0.0.0/8"]))
    shapes = _shapes()
    order = [name for name in shapes for _ in range(REPEATS)]
    random.Random(1).shuffle(order)
    events = defaultdict(list)
    settings = Settings(gpus=len(RANKS), k=2, prompt_tokens=8, decode_tokens=32)
    async with Prober(access, settings, Budget(None, None)) as prober:
        for number, name in enumerate(order, start=1):
            event = await prober.measure(Probe(number, shapes[name], 1, "cover"))
            events[name].append(event.data)
        await prober.leave()
    return {name: _summary(events[name]) for name in shapes}


def _summary(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [event for event in events if event.get("tbt_ms")]
    logs = sorted(math.log(event["tbt_ms"]) for event in measured)
    middle = statistics.median(logs) if logs else math.nan
    spread = 1.4826 * statistics.median(abs(value - middle) for value in logs) if logs else math.nan

    def median(field: str) -> float | None:
        return round(statistics.median(event[field] for event in measured), 2) if measured else None

    return {
        "tbt_ms": median("tbt_ms"),
        "sigma": round(spread, 3) if logs else None,
        "window": median("window"),
        "skew_ms": median("skew_ms"),
        "wall_ms": median("wall_ms"),
        "discarded": sum(event.get("discarded", 0) for event in events),
        "failed": len(events) - len(measured),
    }
