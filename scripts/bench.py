"""Benchmarks: what the service costs, as JSON. Ratios and medians, since machines are shared and noisy.

python scripts/bench.py all            every benchmark, JSON into bench/ and a table
python scripts/bench.py overhead|skew|cover|memory [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

Result = dict[str, Any]
ENDED = {"succeeded", "failed", "cancelled", "expired"}


def cover() -> Result:
    """Greedy covers from nothing: probes, ratio to the Schonheim bound, seconds (median of 3)."""
    from app.localization import cover as covers

    rows = []
    for n, k in ((64, 8), (300, 4), (300, 8), (325, 8), (1024, 8)):
        seconds = []
        for _ in range(3):
            covers._cached.cache_clear()
            started = time.perf_counter()
            probes = len(covers.greedy_cover(n, k))
            seconds.append(time.perf_counter() - started)
        bound = covers.schonheim_bound(n, k)
        rows.append(
            {
                "n": n,
                "k": k,
                "probes": probes,
                "lower_bound": bound,
                "ratio": round(probes / bound, 4),
                "seconds": round(statistics.median(seconds), 4),
            }
        )
    return {"rows": rows, "targets": {"n=325,k=8": 0.5, "n=1024,k=8": 5.0}}


def overhead() -> Result:
    """A job's wall time over the sum of its probes' (parking counted with the probes), bucket off.

    The whole service, 200 measurements of about 20 ms, one at a time; median of 5 jobs.
    """
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    latency = {"fixed_ms": 2.2, "compute_ms": 0.0, "path_ms": {"same_host": 0.0, "cross_host": 0.0}}
    # A cover of 20 probes, ten times: 200 measurements. A prefill step and three decode steps are one probe.
    request = {"k": 4, "repeats": 10, "prompt_tokens": 1, "decode_tokens": 4, "signal": "ttft", "alpha": 100}
    with EmulatedReplica(gpus=16, noise_sigma=0.0, **latency) as replica, Stack(workers=1) as stack:
        client = stack.client()
        registered = client.post("/replicas", json=_document(replica)).json()
        jobs = [_job_cost(client, registered, request) for _ in range(5)]
    return {
        "wall_over_probes": round(statistics.median(job["ratio"] for job in jobs), 4),
        "target": 1.10,
        "jobs": jobs,
    }


def _document(replica: Any) -> dict[str, Any]:
    return {
        "name": "bench",
        "gpus": replica.config.gpus,
        "probe_endpoints": replica.endpoints,
        "manifest": replica.manifest,
        "layout": {"all2all": "sparse"},
        "limits": {"probes_per_second": 10_000},
    }


def _job_cost(client: Any, registered: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    url = client.post(registered["links"]["localize"], json=request).headers["Location"]
    while (job := client.get(url).json())["state"] not in ENDED:
        time.sleep(0.2)
    wall = datetime.fromisoformat(job["finished_at"]) - datetime.fromisoformat(job["started_at"])
    cost = job["verdict"]["cost"]
    return {
        "measurements": cost["measurements"],
        "wall_s": round(wall.total_seconds(), 3),
        "probes_s": cost["seconds"],
        "probe_ms": round(1000 * cost["seconds"] / cost["measurements"], 2),
        "ratio": round(wall.total_seconds() / cost["seconds"], 4),
    }


SKEW_SERVER = """
import asyncio, json, sys, time
arrivals = []
ANSWER = (b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n"
          b"e\\r\\ndata: [DONE]\\n\\n\\r\\n0\\r\\n\\r\\n")
class Server(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.data = transport, b""
    def data_received(self, data):
        self.data += data
        head, found, body = self.data.partition(b"\\r\\n\\r\\n")
        if not found: return
        lines = head.lower().split(b"\\r\\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        if len(body) < length: return
        arrivals.append(time.perf_counter()); self.data = b""
        self.transport.write(ANSWER)
        if len(arrivals) == int(sys.argv[1]):
            print(json.dumps(1000 * (arrivals[-1] - arrivals[0])), flush=True); arrivals.clear()
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def skew() -> Result:
    """How far apart 64 requests reach a server, sent at once by each client; milliseconds, median of 15.

    The server does nothing but note when a request is complete: what is measured is the client and the kernel.
    """
    ranks, rounds = 64, 15
    server = subprocess.Popen([sys.executable, "-c", SKEW_SERVER, str(ranks)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())

    def arrived() -> float:
        assert server.stdout is not None
        return float(server.stdout.readline())

    try:
        lean = asyncio.run(_skew_lean(port, ranks, rounds, arrived))
        kept = asyncio.run(_skew_httpx(port, ranks, rounds, arrived, keep=True))
        fresh = asyncio.run(_skew_httpx(port, ranks, rounds, arrived, keep=False))
    finally:
        server.terminate()
        server.wait()
    return {
        "ranks": ranks,
        "lean_ms": _spread(lean),
        "httpx_open_connections_ms": _spread(kept),
        "httpx_fresh_connections_ms": _spread(fresh),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), 2), "max": round(ordered[-1], 2)}


async def _skew_lean(port: int, ranks: int, rounds: int, arrived: Callable[[], float]) -> list[float]:
    """The prober's own connections, with prepared bytes."""
    from app.outbound import Guard, parse_url
    from app.probing.access import ProbeEndpoint, ReplicaAccess
    from app.probing.connection import RankConnection
    from app.probing.requests import completion_body, prepare, probe_prompts

    endpoint = ProbeEndpoint(parse_url(f"http://127.0.0.1:{port}"), tuple(range(ranks)), "header")
    access = ReplicaAccess("probe", list(range(2, 2 + ranks)), [endpoint], Guard(["127.0.0.0/8"]))
    connections = [RankConnection(access, rank) for rank in range(ranks)]
    prompts = probe_prompts(access, range(8), tokens=16, sequences=1)
    requests = [prepare(access, r, completion_body(access, prompts, max_tokens=16)) for r in range(ranks)]
    found = []
    for _ in range(rounds):
        await asyncio.gather(*(c.open() for c in connections))
        await asyncio.wait([c.send(r) for c, r in zip(connections, requests, strict=True)])
        for connection in connections:
            connection.answer()
        found.append(arrived())
    for connection in connections:
        connection.close()
    return found


async def _skew_httpx(
    port: int, ranks: int, rounds: int, arrived: Callable[[], float], *, keep: bool
) -> list[float]:
    import httpx

    body = {"model": "probe", "prompt": [[7] * 16] * 8, "max_tokens": 16, "stream": True}
    limits = httpx.Limits(max_connections=ranks, max_keepalive_connections=ranks if keep else 0)
    found = []
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=60) as client:

        async def one(rank: int) -> None:
            headers = {"X-data-parallel-rank": str(rank)}
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with client.stream("POST", url, json=body, headers=headers) as response:
                await response.aread()

        for _ in range(rounds):
            await asyncio.gather(*(one(rank) for rank in range(ranks)))
            found.append(arrived())
    return found


def memory() -> Result:
    """Resident memory of the running API process and a worker child after a job, MB."""
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    request = {"k": 8, "repeats": 1, "prompt_tokens": 1, "decode_tokens": 8}
    with EmulatedReplica(gpus=64, hosts=8, fixed_ms=1, compute_ms=0.1) as replica, Stack(workers=1) as stack:
        with stack.client() as client:
            registered = client.post("/replicas", json=_document(replica)).json()
            _job_cost(client, registered, request)
            client.get("/openapi.json")
        processes = {name: _family(pid) for name, pid in stack.pids().items()}
    return {
        "api_mb": round(max(processes["api"]), 1),
        "worker_child_mb": round(min(processes["worker"][1:]), 1),
        "all_mb": {name: [round(mb, 1) for mb in sizes] for name, sizes in processes.items()},
        "targets": {"api_mb": 150, "worker_child_mb": 200},
    }


def _family(pid: int) -> list[float]:
    """Resident MB of the service's processes below a guard process."""
    found = []
    pending = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    while pending:
        child = pending.pop(0)
        status = Path(f"/proc/{child}/status").read_text()
        found.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
        pending += [int(p) for p in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    return found


BENCHMARKS: dict[str, Callable[[], Result]] = {
    "cover": cover,
    "skew": skew,
    "overhead": overhead,
    "memory": memory,
}


def main() -> None:
    """Run benchmarks and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--out", type=Path, help="file for the JSON; default: print")
    arguments = parser.parse_args()
    names = list(BENCHMARKS) if arguments.benchmark == "all" else [arguments.benchmark]
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    results: Result = {"machine": machine}
    for name in names:
        results[name] = BENCHMARKS[name]()
    text = json.dumps(results, indent=1)
    out = arguments.out or (ROOT / "bench" / "all.json" if arguments.benchmark == "all" else None)
    if out is not None:
        out.parent.mkdir(exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
