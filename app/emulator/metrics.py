"""The Prometheus text of /metrics, with vLLM's names and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.emulator.engine import Engine
from app.emulator.observer import Histogram, RankCounters

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def metrics_text(engine: Engine, model: str) -> str:
    """Return the metrics of every rank; vLLM calls a rank an engine."""
    return "\n".join(_lines(engine, model)) + "\n"


def _lines(engine: Engine, model: str) -> Iterator[str]:
    running = [len(rank.running) for rank in engine.ranks]
    waiting = [len(rank.waiting) for rank in engine.ranks]
    yield from _family(
        "num_requests_running", "gauge", "Number of requests in model execution batches.", running, model
    )
    yield from _family(
        "num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting, model
    )
    for name, text, value in _COUNTERS:
        values = [value(counters) for counters in engine.observer.ranks]
        yield from _family(name, "counter", text, values, model)
    for name, text, histogram in _HISTOGRAMS:
        yield from _heading(name, "histogram", text)
        for number, counters in enumerate(engine.observer.ranks):
            yield from _histogram(name, histogram(counters), f'engine="{number}",model_name="{model}"')


_COUNTERS: tuple[tuple[str, str, Callable[[RankCounters], int]], ...] = (
    ("prompt_tokens_total", "Number of prefill tokens processed.", lambda rank: rank.prompt_tokens),
    ("generation_tokens_total", "Number of generation tokens processed.", lambda rank: rank.generation_tokens),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[RankCounters], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda rank: rank.ttft),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda rank: rank.tbt),
)


def _heading(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {text}"
    yield f"# TYPE vllm:{name} {kind}"


def _family(name: str, kind: str, text: str, values: list[int], model: str) -> Iterator[str]:
    yield from _heading(name, kind, text)
    for number, value in enumerate(values):
        yield f'vllm:{name}{{engine="{number}",model_name="{model}"}} {float(value)}'


def _histogram(name: str, histogram: Histogram, labels: str) -> Iterator[str]:
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
    yield f"vllm:{name}_count{{{labels}}} {float(total)}"
    yield f"vllm:{name}_sum{{{labels}}} {histogram.sum}"
