"""How far apart simultaneous requests arrive."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable

from scripts.benchmarks.common import Result

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
    prompts = probe_prompts(access, range(8), tokens=16)
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
