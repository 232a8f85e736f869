"""Both strategies on a real vLLM server, in one run and over HTTP: who is named, and what it took."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.common import Result

JOB_SECONDS = 600.0
EXPERTS_PER_GPU, TOP_K, HIDDEN = 4, 2, 128
Faults = Mapping[str, Mapping[str, float]]


def localize_vllm() -> Result:
    """Jobs on ``VLLM_RANKS`` ranks (default 4), ``VLLM_HEALTHY`` of them healthy (10); needs ``VLLM_VENV``.

    Faults and strategies take turns, so that what else the machine does falls on all of them.
    """
    from app.cli.stack import Stack
    from scripts.vllm_server import VllmServer, run_where_torch_is

    ranks = int(os.environ.get("VLLM_RANKS", "4"))
    healthy = int(os.environ.get("VLLM_HEALTHY", "10"))
    venv = Path(os.environ["VLLM_VENV"])
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        run_where_torch_is(venv, _build(ranks), model)
        server = VllmServer(venv, model, start_seconds=600.0)
        with server, Stack(workers=1, settings={"probe_timeout_s": "30"}) as stack, stack.client() as client:
            replica = _register(client, server, ranks)
            rows = []
            for what, faults, expected in _worlds(ranks, healthy):
                server.set_faults(faults)
                for strategy, request in _requests(ranks).items():
                    row = {"strategy": strategy, "what": what, "expected": expected}
                    rows.append(row | _job(client, replica, request))
                    print(rows[-1], flush=True)
    requests = {name: dict(request) for name, request in _requests(ranks).items()}
    return {"ranks": ranks, "requests": requests, "rows": rows, "summary": _summary(rows)}


def page(result: Result) -> str:
    """The figures as Markdown."""
    head = "| world | strategy | jobs | right | false accusations | probes | measurements | path-units | seconds |"
    lines = [
        f"# Real vLLM, {result['ranks']} ranks",
        "",
        "Data-parallel, expert-parallel ranks on CPUs, sparse all-to-all, faults by this project's plugin; jobs"
        " over HTTP, both strategies in turns on the same server. Costs are medians.",
        "",
        f"    VLLM_VENV=... VLLM_RANKS={result['ranks']} python scripts/bench.py localize_vllm",
        "",
        *(f"{name}: `{json.dumps(request)}`  " for name, request in result["requests"].items()),
        "",
        head,
        "|" + " --- |" * head.count(" | ") + " --- |",
    ]
    for row in result["summary"]:
        lines.append("| " + " | ".join(str(value) for value in row.values()) + " |")
    amiss = [
        row for row in result["rows"] if row.get("named") != row["expected"] or row["outcome"] == "inconclusive"
    ]
    for row in amiss:
        said = ", ".join([*row.get("named", []), *row.get("reasons", [str(row.get("error"))])])
        lines.append(f"\nNot right: {row['what']}, {row['strategy']}: {row['outcome']} ({said}).")
    return "\n".join(lines) + "\n"


def _build(ranks: int) -> str:
    return (
        "import sys; from pathlib import Path; from app.probe_model.build import build;"
        "from app.probe_model.verify import verify;"
        f"build({ranks}, {EXPERTS_PER_GPU}, {TOP_K}, {HIDDEN}, Path(sys.argv[1]), max_num_seqs=16);"
        "verify(Path(sys.argv[1]))"
    )


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
    tokens = {"prompt_tokens": 8, "decode_tokens": 40}
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
    """With a topology: ranks that share a core exchange more slowly, as GPUs between hosts do."""
    from app.probe_model.manifest import load_manifest

    registered = client.post(
        "/replicas",
        json={
            "name": "real-vllm",
            "gpus": ranks,
            "probe_endpoints": [{"url": server.url, "ranks": f"0-{ranks - 1}", "rank_choice": "header"}],
            "manifest": load_manifest(server.model).model_dump(mode="json"),
            "layout": {"dp": ranks, "all2all": "sparse"},
            "limits": {"probes_per_second": 100},
        },
    )
    registered.raise_for_status()
    found: dict[str, Any] = registered.json()
    topology = [{"rank": rank, "host": f"core-{core}"} for rank, core in enumerate(server.cores(ranks))]
    client.put(found["links"]["topology"], json={"gpus": topology}).raise_for_status()
    return found


def _job(client: Any, replica: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    accepted = client.post(replica["links"]["localize"], json=request)
    accepted.raise_for_status()
    ends = time.monotonic() + JOB_SECONDS
    while (job := client.get(accepted.headers["Location"]).json())["state"] in {"queued", "running"}:
        if time.monotonic() > ends:
            raise TimeoutError(f"{accepted.headers['Location']} did not end within {JOB_SECONDS:.0f} s")
        time.sleep(0.5)
    verdict = job["verdict"]
    if verdict is None:
        return {"outcome": job["state"], "error": job["error"]}
    return {
        "outcome": verdict["outcome"],
        "named": [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in verdict["suspects"]],
        "slowdowns": [s["slowdown"] for s in verdict["suspects"]],
        "reasons": [reason["code"] for reason in verdict["reasons"]],
        **{name: verdict["cost"][name] for name in ("probes", "measurements", "path_units")},
        "seconds": round(verdict["cost"]["seconds"], 1),
    }


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for a strategy and a fault: how often it was right, and medians of the three costs."""
    found = []
    for what, strategy in dict.fromkeys((row["what"], row["strategy"]) for row in rows):
        same = [row for row in rows if (row["what"], row["strategy"]) == (what, strategy)]
        right = [row for row in same if row.get("named") == row["expected"] and row["outcome"] != "inconclusive"]
        costs = {
            name: median(row[name] for row in same if name in row)
            for name in ("probes", "measurements", "path_units", "seconds")
        }
        wrong = sum(bool(set(row.get("named", [])) - set(row["expected"])) for row in same)
        counts = {"jobs": len(same), "right": len(right), "false_accusations": wrong}
        found.append({"what": what, "strategy": strategy, **counts, **costs})
    return found
