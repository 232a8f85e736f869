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
    """One prompt of a request, and how far it is.

    ``token_row`` are the copies sent to each rank in a decode step: token t answers t, so the last prompt token
    is every output token. ``prefilled`` counts the prompt tokens that have been taken in, ``chunk`` those that
    the present step takes in; ``produced`` counts output tokens, ``finished`` says that all are out.
    """

    request: Request
    index: int
    prompt: tuple[int, ...]
    limit: int
    destinations: Destinations
    token_row: Mapping[int, int]
    prefilled: int = 0
    chunk: int = 0
    produced: int = 0
    finished: bool = False

    @property
    def token(self) -> int:
        """What it answers."""
        return self.prompt[-1]

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not taken in yet."""
        return len(self.prompt) - self.prefilled

    def step_row(self) -> Mapping[int, int]:
        """What its present step sends: copies of tokens by rank."""
        if not self.chunk:
            return self.token_row
        row: Counter[int] = Counter()
        for token, times in Counter(self.prompt[self.prefilled : self.prefilled + self.chunk]).items():
            row.update(dict.fromkeys(self.destinations(token), times))
        return row

    def input_token(self) -> int:
        """The first token that its present step takes in."""
        return self.prompt[self.prefilled] if self.chunk else self.token

    def advance(self) -> bool:
        """End the present step; return whether it gave a token, which a chunk before the last does not."""
        if self.chunk:
            self.prefilled, self.chunk = self.prefilled + self.chunk, 0
            if self.prompt_left:
                return False
        self.produced += 1
        self.finished = self.produced >= self.limit
        return True


@dataclass(slots=True)
class Rank:
    """The scheduler state of one rank."""

    stale: tuple[int, ...]
    waiting: deque[ActiveSequence] = field(default_factory=deque)
    running: list[ActiveSequence] = field(default_factory=list)
    requests: int = 0

    def schedule(self, max_num_seqs: int, max_num_batched_tokens: int) -> bool:
        """Give the next step's tokens to the running sequences, then to waiting ones, first come first served.

        A decoding sequence takes one token, a prompt as many as are left of it and of the step: vLLM's chunked
        prefill. Every running sequence gets one at least: together they had so many when the last one joined.

        Returns
        -------
        bool
            Whether a sequence joined.
        """
        left = max_num_batched_tokens
        for sequence in self.running:
            sequence.chunk = min(sequence.prompt_left, left)
            left -= sequence.chunk or 1
        before = len(self.running)
        while self.waiting and len(self.running) < max_num_seqs and left > 0:
            sequence = self.waiting.popleft()
            if not sequence.request.aborted:
                self.running.append(sequence)
                sequence.chunk = min(sequence.prompt_left, left)
                left -= sequence.chunk
        return len(self.running) > before


def make_sequences(
    request: Request,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    destinations: Destinations,
) -> tuple[ActiveSequence, ...]:
    """Prepare one sequence per prompt; ``limits`` are output tokens, ``prompts`` are not empty."""
    return tuple(
        ActiveSequence(
            request, index, tuple(prompt), limit, destinations, dict.fromkeys(destinations(prompt[-1]), 1)
        )
        for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    )
