"""What the tests of probing share: vLLM's recorded answers, streams to write, and short ways to a prober."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.emulator.replica import EmulatedReplica
from app.localization.events import Event
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.shapes import Clique
from app.outbound import Guard, parse_url
from app.probing.access import ProbeEndpoint, RankChoice, ReplicaAccess
from app.probing.budget import Budget
from app.probing.prober import Prober
from app.replicas.ranks import parse_ranks
from tests.outbound.servers import Answer, FakeServer, Received, whole

SAMPLES = Path(__file__).parents[1] / "data" / "vllm"
GUARD = Guard(["127.0.0.0/8"])
# However busy the machine: a conversation that takes longer is broken.
BOUND_S = 60.0

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: object) -> bytes:
    """One server-sent event as a chunk; what is not bytes becomes JSON."""
    payload = document if isinstance(document, bytes) else json.dumps(document).encode()
    return chunk(b"data: " + payload + b"\n\n")


def token(index: object, ids: object) -> bytes:
    return event({"choices": [{"index": index, "text": "", "token_ids": ids}]})


def stream(*events: bytes, done: bool = True) -> bytes:
    """A whole streamed response."""
    return STREAM_HEAD + b"".join(events) + (event(b"[DONE]") if done else b"") + STREAM_END


def sample(name: str) -> bytes:
    """A recorded answer of vLLM as it was on the wire: the samples keep it in four notations."""
    text = (SAMPLES / name).read_text()
    if text.startswith("HTTP/"):
        return whole(200, text.split("\n\n", 1)[1].encode())
    if text.startswith("REQUEST"):
        _, rest = text.split("\nSTATUS ", 1)
        status, rest = rest.split("\nHEADERS ", 1)
        headers, body = rest.split("\nBODY\n", 1)
        return _response(int(status), ast.literal_eval(headers), body.rstrip("\n").encode())
    if "last chunks:\n" in text:
        return _stream_of(text.split("last chunks:\n", 1)[1])
    kind, status, answer = ast.literal_eval(text.split("\n", 1)[1].strip())
    if kind == "stream":
        return _stream_of(answer)
    headers, body = answer.split("]", 1)
    return _response(status, dict(ast.literal_eval(headers + "]")), body.encode())


def _response(status: int, headers: dict[str, str], body: bytes) -> bytes:
    if "transfer-encoding" in headers:
        return _stream_of(body.decode())
    assert len(body) == int(headers["content-length"])
    return whole(status, body, content_type=headers["content-type"])


def _stream_of(text: str) -> bytes:
    lines = [line.removeprefix("data: ").encode() for line in text.split("\n") if line.strip()]
    return stream(*map(event, [line for line in lines if line != b"[DONE]"]))


def echoed(received: Received) -> bytes:
    """What a probe model answers, all at once."""
    prompts, tokens = received.document["prompt"], received.document["max_tokens"]
    return stream(*(token(i, [prompt[0]]) for _ in range(tokens) for i, prompt in enumerate(prompts)))


async def echo(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(echoed(received))


def is_parking(received: Received) -> bool:
    return received.document["max_tokens"] == 1


def park_then(answer: Answer) -> Answer:
    """Echo parking requests, answer the others as told."""

    async def either(received: Received, writer: asyncio.StreamWriter) -> None:
        await (echo if is_parking(received) else answer)(received, writer)

    return either


def lock_step(group: int, *, apart: int = 0, step_s: float = 0.004) -> Answer:
    """Decode for ``group`` requests in common steps; in the first ``apart`` rounds one after the other instead."""
    waiting: list[tuple[Received, asyncio.StreamWriter]] = []
    rounds = 0

    async def decode(batch: Sequence[tuple[Received, asyncio.StreamWriter]]) -> None:
        for _ in range(batch[0][0].document["max_tokens"]):
            await asyncio.sleep(step_s)
            for received, writer in batch:
                prompts = received.document["prompt"]
                writer.write(b"".join(token(i, [prompt[0]]) for i, prompt in enumerate(prompts)))

    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal rounds
        writer.write(STREAM_HEAD)
        waiting.append((_, writer))
        if len(waiting) < group:
            return
        batch, waiting[:], rounds = list(waiting), [], rounds + 1
        for part in [[one] for one in batch] if rounds <= apart else [batch]:
            await decode(part)
        for _, other in batch:
            other.write(STREAM_END)

    return answer


def access_to(
    *urls: str,
    gpus: int | None = None,
    rank_choice: RankChoice = "header",
    tokens: Sequence[int] | None = None,
    **more: Any,
) -> ReplicaAccess:
    """Access to ``gpus`` ranks behind one URL, or to one rank behind each URL."""
    if gpus is None:
        endpoints = [ProbeEndpoint(parse_url(url), (rank,), "url") for rank, url in enumerate(urls)]
    else:
        endpoints = [ProbeEndpoint(parse_url(urls[0]), tuple(range(gpus)), rank_choice)]
    count = sum(len(endpoint.ranks) for endpoint in endpoints)
    return ReplicaAccess("probe", tokens or [7 + rank for rank in range(count)], endpoints, GUARD, **more)


def access_of(replica: EmulatedReplica, **more: Any) -> ReplicaAccess:
    """Access to an emulated replica."""
    manifest = replica.manifest
    endpoints = [
        ProbeEndpoint(
            parse_url(e["url"]), parse_ranks(e["ranks"]), "url" if e["rank_choice"] == "url" else "header"
        )
        for e in replica.endpoints
    ]
    return ReplicaAccess(manifest["model"], manifest["gpu_tokens"], endpoints, GUARD, **more)


def probe(*members: int, sequences: int = 1, **changes: Any) -> Probe:
    return Probe(**{"number": 1, "shape": Clique(members, sequences), "phase": 1, "purpose": "cover", **changes})


def settings(gpus: int, **changes: Any) -> Settings:
    return Settings(**{"gpus": gpus, "k": 2, "prompt_tokens": 2, "decode_tokens": 4, **changes})


def no_limits() -> Budget:
    return Budget(None, None)


async def measure(access: ReplicaAccess, *probes: Probe, prober: Callable[..., Prober] = Prober, **s: Any) -> Any:
    """Measure probes one after the other with one prober; the events, or the only one."""
    gpus = len(access.gpu_tokens)
    async with asyncio.timeout(BOUND_S), prober(access, settings(gpus, **s), no_limits()) as running:
        events: list[Event] = [await running.measure(p) for p in probes]
    return events if len(events) > 1 else events[0]


def on_server(
    answer: Answer, *probes: Probe, gpus: int = 2, access: dict[str, Any] | None = None, **s: Any
) -> tuple[Any, FakeServer]:
    """Measure probes on ranks behind one server; the events (or the event), and what the server received."""

    async def run() -> tuple[Any, FakeServer]:
        async with FakeServer(answer) as server:
            reached = access_to(server.url, gpus=gpus, **(access or {}))
            return await measure(reached, *probes, **s), server

    return asyncio.run(run())
