"""What the engine runs: requests, their sequences, and where their tokens go."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Destinations = Callable[[int], tuple[int, ...]]
"""Token id -> the ranks that hold its experts."""


class EngineDeadError(Exception):
    """The engine failed, or is still recovering; vLLM answers 500 (or an event in the stream)."""


class EngineBusyError(Exception):
    """More requests wait than the server queues; vLLM answers 503 (or an event in the stream)."""


class Reply(Protocol):
    """Where the engine puts what a request gets; called inside the event loop, so it must not block."""

    def tokens(self, sequences: Sequence[ActiveSequence]) -> None:
        """One token for each of ``sequences``, whose ``produced`` counts it already."""

    def failed(self, error: Exception) -> None:
        """The request ends with ``error``."""


@dataclass(slots=True, eq=False)
class Request:
    """One completion request on one rank.

    ``number`` counts the requests of its rank from 0; ``open`` counts its unfinished sequences.
    """

    rank: int
    number: int
    reply: Reply
    arrived: float
    open: int
    aborted: bool = False
    last_token: float | None = None
    sequences: tuple[ActiveSequence, ...] = ()


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """One prompt of a request, and how far its decoding is.

    ``prompt_row`` and ``token_row`` are the copies sent to each rank in the prefill and in a decode step.
    Token t answers t, so the last prompt token is every output token.
    """

    request: Request
    index: int
    first_token: int
    token: int
    prompt_tokens: int
    limit: int
    prompt_row: Mapping[int, int]
    token_row: Mapping[int, int]
    produced: int = 0

    @property
    def finished(self) -> bool:
        """Whether all its tokens are out."""
        return self.produced >= self.limit

    def step_row(self) -> Mapping[int, int]:
        """What its next step sends."""
        return self.token_row if self.produced else self.prompt_row

    def input_token(self) -> int:
        """The first token that its next step takes in."""
        return self.token if self.produced else self.first_token


@dataclass(slots=True)
class Rank:
    """The scheduler state of one rank."""

    stale: tuple[int, ...]
    waiting: deque[ActiveSequence] = field(default_factory=deque)
    running: list[ActiveSequence] = field(default_factory=list)
    requests: int = 0

    def admit(self, max_num_seqs: int) -> list[ActiveSequence]:
        """Move waiting sequences into the batch, first come first served; return the new ones."""
        admitted = []
        while self.waiting and len(self.running) < max_num_seqs:
            sequence = self.waiting.popleft()
            if not sequence.request.aborted:
                self.running.append(sequence)
                admitted.append(sequence)
        return admitted


def make_sequences(
    request: Request,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    destinations: Destinations,
) -> tuple[ActiveSequence, ...]:
    """Prepare one sequence per prompt; ``limits`` are output tokens, ``prompts`` are not empty."""
    sequences = []
    for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        row: Counter[int] = Counter()
        for token, times in Counter(prompt).items():
            row.update(dict.fromkeys(destinations(token), times))
        token_row = dict.fromkeys(destinations(prompt[-1]), 1)
        sequences.append(ActiveSequence(request, index, prompt[0], prompt[-1], len(prompt), limit, row, token_row))
    return tuple(sequences)
