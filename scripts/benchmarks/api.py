"""One API process under load: 200 watchers and 50 requests a second for a minute, on loopback."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

import httpx

from scripts.benchmarks.common import Result, document, milliseconds

WATCHERS = 200
REQUESTS_PER_SECOND = 50
SECONDS = 60
MARK = b"event: measured\n"


def api() -> Result:
    """Errors and latencies of a mixed load while 200 watchers follow a running job; one API process."""
    from app.cli.stack import Stack
    from app.emulator.replica import EmulatedReplica

    # 28 pairs, 15 times, 5 a second: longer than a minute, and each of the 200 watchers gets every measurement.
    request = {"k": 2, "repeats": 15, "prompt_tokens": 1, "decode_tokens": 4}
    fast = {"fixed_ms": 1.0, "compute_ms": 0.5, "path_ms": {"same_host": 0.5, "cross_host": 0.5}}
    with EmulatedReplica(gpus=8, hosts=2, **fast) as replica, Stack(workers=1) as stack, stack.client() as client:
        registered = client.post("/replicas", json=document(replica, probes_per_second=5)).json()
        job = client.post(registered["links"]["localize"], json=request).headers["Location"]
        paths = [job, "/jobs", f"{job}/probes", "/replicas", registered["links"]["self"], "/readyz"]
        headers = dict(client.headers)
        result = asyncio.run(_load(stack.url, headers, paths, job))
        client.post(f"{job}/cancel")
    return result


async def _load(url: str, headers: dict[str, str], paths: list[str], job: str) -> Result:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=30, trust_env=False, limits=limits
    ) as client:
        events: list[int] = [0] * WATCHERS
        watchers = [
            asyncio.create_task(_watch(url, headers["authorization"], job, events, i)) for i in range(WATCHERS)
        ]
        while not all(events):  # noqa: ASYNC110  two hundred counters, no one event
            await asyncio.sleep(0.1)
        before = list(events)
        answers: Counter[str] = Counter()
        seconds: list[float] = []
        began = time.perf_counter()
        requests = []
        for number, path in zip(range(REQUESTS_PER_SECOND * SECONDS), itertools.cycle(paths), strict=False):
            due = began + number / REQUESTS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            requests.append(asyncio.create_task(_ask(client, path, answers, seconds)))
        await asyncio.gather(*requests)
        took = time.perf_counter() - began
        ended = sum(task.done() for task in watchers)
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    received = [after - then for after, then in zip(events, before, strict=True)]
    return {
        "watchers": WATCHERS,
        "watchers_lost": ended,
        "events_per_watcher": {"min": min(received), "max": max(received)},
        "requests": len(seconds),
        "requests_per_second": round(len(seconds) / took, 1),
        "answers": dict(answers),
        "errors": sum(number for answer, number in answers.items() if answer != "200"),
        "ms": milliseconds(seconds),
    }


async def _watch(url: str, key: str, job: str, events: list[int], index: int) -> None:
    """Count a stream's measurements, as cheaply as can be: two hundred watchers share the server's machine."""
    where = httpx.URL(url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    request = f"GET {job}/events HTTP/1.1\r\nHost: {where.host}\r\nAuthorization: {key}\r\n\r\n"
    writer.write(request.encode())
    rest = b""
    try:
        while chunk := await reader.read(65536):
            rest += chunk
            events[index] += rest.count(MARK)
            rest = rest[rest.rfind(b"\n") + 1 :]
    finally:
        writer.close()


async def _ask(client: httpx.AsyncClient, path: str, answers: Counter[str], seconds: list[float]) -> None:
    began = time.perf_counter()
    try:
        answer = str((await client.get(path)).status_code)
    except httpx.HTTPError as error:
        answer = type(error).__name__
    answers[answer] += 1
    seconds.append(time.perf_counter() - began)
