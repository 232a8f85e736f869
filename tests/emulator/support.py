"""What the emulator's tests share: a made-up clock, a recording reply, the vLLM samples, a streaming client."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from app.emulator.engine import NO_LIMIT, Engine
from app.emulator.latency import LatencyModel
from app.emulator.noise import Noise
from app.emulator.requests import ActiveSequence
from app.emulator.sharing import SharedGpus
from app.localization.faults import parse_faults

SAMPLES = Path(__file__).parents[1] / "data" / "vllm"
QUIET = Noise(sigma=0.0)


class FakeClock:
    """Time that passes only in `sleep_until`; ``late_s`` is how much later than asked it returns."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.time = 0.0
        self.late_s = late_s
        self._events: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        return self.time

    def at(self, when: float, action: Callable[[], object]) -> None:
        self._events.append((when, action))
        self._events.sort(key=lambda event: event[0])

    async def sleep_until(self, deadline: float) -> None:
        await asyncio.sleep(0)
        while self._events and self._events[0][0] <= deadline:
            when, action = self._events.pop(0)
            self.time = max(self.time, when)
            action()
        self.time = max(self.time, deadline + self.late_s)


@dataclass
class RecordingReply:
    """Keeps the time of every token, per sequence, and the error."""

    clock: FakeClock
    times: dict[int, list[float]] = field(default_factory=dict)
    error: Exception | None = None

    def tokens(self, sequences: Sequence[ActiveSequence]) -> None:
        for sequence in sequences:
            self.times.setdefault(sequence.index, []).append(self.clock.time)

    def failed(self, error: Exception) -> None:
        self.error = error

    @property
    def gaps_ms(self) -> list[float]:
        times = self.times[0]
        return [round((b - a) * 1e3, 6) for a, b in pairwise(times)]


class Lab:
    """An engine on a made-up clock; token t belongs to GPU t."""

    def __init__(
        self,
        gpus: int = 4,
        *,
        faults: Sequence[str] = (),
        clock: FakeClock | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = NO_LIMIT,
        max_num_queued: int | None = None,
        errors_in_step: bool = True,
        gpus_shared: SharedGpus | None = None,
        **model: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.model = LatencyModel(gpus, **{"hosts": 1, "noise": QUIET, **model})
        self.engine = Engine(
            self.model,
            lambda token: (token,),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_queued=max_num_queued,
            errors_in_step=errors_in_step,
            gpus=gpus_shared,
            clock=self.clock,
        )
        self.set_faults(*faults)

    def set_faults(self, *texts: str) -> None:
        self.engine.set_faults(parse_faults(texts, self.model.gpus, self.model.placement))

    def submit(self, rank: int | None, prompts: Sequence[Sequence[int]], tokens: int = 5) -> RecordingReply:
        reply = RecordingReply(self.clock)
        self.engine.submit(rank, prompts, [tokens] * len(prompts), reply)
        return reply

    async def settle(self) -> None:
        """Let the engine go on until it sleeps, hangs or waits for work."""
        for _ in range(2000):
            await asyncio.sleep(0)


def in_lab(scenario: Callable[[Lab], Awaitable[None]], **settings: Any) -> Lab:
    """Run a scenario with the engine running beside it."""

    async def run() -> Lab:
        lab = Lab(**settings)
        stepping = asyncio.create_task(lab.engine.run())
        try:
            await scenario(lab)
        finally:
            stepping.cancel()
        return lab

    return asyncio.run(run())


@dataclass(frozen=True)
class Sample:
    """A recorded exchange with real vLLM."""

    request: dict[str, Any]
    status: int
    headers: dict[str, str]
    body: str


def sample(name: str) -> Sample:
    """Read a sample of the REQUEST / STATUS / HEADERS / BODY form."""
    text = (SAMPLES / name).read_text()
    request, status, headers, body = re.fullmatch(
        r"REQUEST.*? body=(.*?)\nSTATUS (\d+)\nHEADERS (.*?)\nBODY\n(.*)", text, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    return Sample(json.loads(request), int(status), json.loads(headers.replace("'", '"')), body)


def shape(document: Any) -> Any:
    """Return keys and types without the values."""
    if isinstance(document, dict):
        return {key: shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shape(item) for item in document]
    return type(document).__name__


def events(body: str) -> list[Any]:
    """Return the events of a stream, the end mark as text."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line.strip()]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def completion(
    prompt: object, *, rank: int | None = None, url: str = "", client: httpx.Client, **extra: Any
) -> httpx.Response:
    """Ask for a completion."""
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body = {"model": "probe", "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    return client.post(f"{url}/v1/completions", json={**body, **extra}, headers=headers)


def mean_gap_ms(client: httpx.Client, rank: int, token: int, tokens: int = 5) -> float:
    """Stream one sequence; return its mean inter-token time, ms."""
    body = {"prompt": [token], "max_tokens": tokens, "stream": True, "return_token_ids": True}
    times: list[float] = []
    with client.stream(
        "POST", "/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)}
    ) as response:
        for line in response.iter_lines():
            if '"token_ids":[' in line:
                times.append(time.perf_counter())
    assert len(times) == tokens
    return (times[-1] - times[0]) / (tokens - 1) * 1e3
