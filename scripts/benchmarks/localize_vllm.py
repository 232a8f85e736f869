"""Both strategies on a real vLLM server, in one run and over HTTP: who is named, and what it took."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from app.cli.client import call, watch_job
from scripts.benchmarks.common import Result
from scripts.vllm_replica import TOP_K, build_probe_model, replica_document, topology_document

JOB_SECONDS = 600.0
Faults = Mapping[str, Mapping[str, float]]


def localize_vllm() -> Result:
    """Jobs on ``VLLM_RANKS`` ranks (default 4), ``VLLM_HEALTHY`` of them healthy (10); needs ``VLLM_VENV``.

    Faults and strategies take turns, so that what else the machine does falls on all of them.
    """
    from app.cli.stack import Stack
    from scripts.vllm_server import VllmServer

    ranks = int(os.environ.get("VLLM_RANKS", "4"))
    healthy = int(os.environ.get("VLLM_HEALTHY", "10"))
    venv, requests = Path(os.environ["VLLM_VENV"]), _requests(ranks)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        build_probe_model(venv, model, ranks)
        server = VllmServer(venv, model, start_seconds=600.0)
        with server, Stack(workers=1, settings={"probe_timeout_s": "30"}) as stack, stack.client() as client:
            replica = _register(client, server, ranks)
            rows = []
            for what, faults, expected in _worlds(ranks, healthy):
                server.set_faults(faults)
                for strategy, request in requests.items():
                    row = {"strategy": strategy, "what": what, "expected": expected}
                    rows.append(row | _job(client, replica, request))
                    print(rows[-1], flush=True)
    return {"ranks": ranks, "healthy": healthy, "requests": requests, "rows": rows, "summary": _summary(rows)}


def page(result: Result) -> str:
    """The figures as Markdown."""
    head = "| world | strategy | jobs | right | false accusations | probes | measurements | path-units | seconds |"
    lines = [
        f"# Real vLLM, {result['ranks']} ranks",
        "",
        "Data-parallel, expert-parallel ranks on CPUs, sparse all-to-all, faults by this project's plugin; jobs"
        " over HTTP, both strategies in turns on the same server. Costs are medians.",
        "",
        f"    VLLM_VENV=... VLLM_RANKS={result['ranks']} VLLM_HEALTHY={result['healthy']}"
        " python scripts/bench.py localize_vllm",
        "",
        *(f"{name}: `{json.dumps(request)}`  " for name, request in result["requests"].items()),
        "",
        head,
        "|" + " --- |" * head.count(" | ") + " --- |",
    ]
    for row in result["summary"]:
        lines.append("| " + " | ".join(str(value) for value in row.values()) + " |")
    for row in result["rows"]:
        if not _right(row):
            said = ", ".join([*row["named"], *row["reasons"], *([str(row["error"])] if "error" in row else [])])
            lines.append(f"\nNot right: {row['what']}, {row['strategy']}: {row['outcome']} ({said}).")
    return "\n".join(lines) + "\n"


def _worlds(ranks: int, healthy: int) -> Iterator[tuple[str, Faults, list[str]]]:
    # Twice as many ranks on the same cores take more than twice as long a step.
    path_ms, gpu_ms = (30, 200) if ranks <= 4 else (100, 400)
    faulty: list[tuple[str, Faults, list[str]]] = [
        (f"path 1-3 +{path_ms} ms", {"path:1-3": {"ms": path_ms}}, ["path:1-3"]),
        (f"path 1>3 +{path_ms} ms", {"path:1>3": {"ms": path_ms}}, ["path:1-3"]),
        # Not the dummy token of an idle rank, which is one row for each of its top-k experts.
        (f"gpu 2 +{gpu_ms} ms", {"gpu:2": {"ms": gpu_ms, "above_rows": TOP_K}}, ["gpu:2"]),
    ]
    for number in range(max(healthy, len(faulty))):
        if number < healthy:
            yield "healthy", {}, []
        if number < len(faulty):
            yield faulty[number]


def _requests(ranks: int) -> dict[str, dict[str, Any]]:
    # Where a step takes longer, fewer are as good an average, and the run ends within the hour.
    tokens = {"prompt_tokens": 8, "decode_tokens": 40 if ranks <= 4 else 24}
    return {
        "faultsense": {
            "strategy": "faultsense",
            "k": ranks // 2,
            "alpha": 2.5,
            "baseline": "low_decile",
            **tokens,
        },
        "adaptive": {"strategy": "adaptive", "max_load": 4, **tokens},
    }


def _register(client: Any, server: Any, ranks: int) -> dict[str, Any]:
    """With a topology: two hop classes."""
    registered: dict[str, Any] = call(client, "POST", "/replicas", replica_document(server, ranks))
    call(client, "PUT", registered["links"]["topology"], topology_document(server, ranks))
    return registered


def _job(client: Any, replica: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    started = call(client, "POST", replica["links"]["localize"], {**request, "deadline_s": JOB_SECONDS})
    job = watch_job(client, started["id"])
    verdict = job["verdict"]
    if verdict is None:
        return {"outcome": job["state"], "error": job["error"], "named": [], "reasons": []}
    return {
        "outcome": verdict["outcome"],
        "named": [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in verdict["suspects"]],
        "slowdowns": [s["slowdown"] for s in verdict["suspects"]],
        "reasons": [reason["code"] for reason in verdict["reasons"]],
        **{name: verdict["cost"][name] for name in ("probes", "measurements", "path_units")},
        "seconds": round(verdict["cost"]["seconds"], 1),
    }


def _right(row: dict[str, Any]) -> bool:
    return bool(row["named"] == row["expected"] and row["outcome"] in {"healthy", "localized"})


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for a strategy and a fault: how often it was right, and medians of the three costs."""
    found = []
    for what, strategy in dict.fromkeys((row["what"], row["strategy"]) for row in rows):
        same = [row for row in rows if (row["what"], row["strategy"]) == (what, strategy)]
        costs = {
            name: median(row[name] for row in same if name in row)
            for name in ("probes", "measurements", "path_units", "seconds")
        }
        wrong = sum(bool(set(row["named"]) - set(row["expected"])) for row in same)
        counts = {"jobs": len(same), "right": sum(map(_right, same)), "false_accusations": wrong}
        found.append({"what": what, "strategy": strategy, **counts, **costs})
    return found
