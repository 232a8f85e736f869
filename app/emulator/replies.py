"""Turn tokens into the bytes of a vLLM answer.

A probe's step may carry hundreds of tokens, so what repeats is built once: since token t answers t, every
middle chunk of a sequence is the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import uuid4

from app.emulator.completion import Completion
from app.emulator.requests import ActiveSequence
from app.probe_model.manifest import Manifest

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-emulated"
DONE = b"data: [DONE]\n\n"
_FINISHED, _NULL = '"length"', "null"


def compact(document: object) -> str:
    """Return JSON without spaces, as vLLM writes bodies."""
    return json.dumps(document, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _compact_ids(prompt: tuple[int, ...]) -> str:
    """Many ranks get the same prompts at once, and their first tokens must not wait for each other's JSON."""
    return compact(prompt)


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Texts and log-probabilities of tokens.

    Parameters
    ----------
    manifest : Manifest
        Of the served model.
    """

    manifest: Manifest
    _texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def text(self, token: int) -> str:
        """Return the text of a token: its experts, as the probe model's tokenizer writes them."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = " x" + "_".join(map(str, self.manifest.experts_of(token)))
        return text

    def name(self, token: int, as_id: bool) -> str:
        """Return how log-probabilities call a token."""
        return f"token_id:{token}" if as_id else self.text(token)

    def logprobs(self, completion: Completion, token: int, first: int, times: int) -> dict[str, object] | None:
        """Return the log-probabilities of ``times`` outputs of ``token``, from output ``first`` on.

        A token that the manifest has none for is certain: log-probability 0.
        """
        if completion.logprobs is None:
            return None
        known = self.manifest.expected_logprobs(token) or {token: 0.0}
        best = dict(sorted(known.items(), key=lambda entry: -entry[1])[: completion.logprobs])
        best.setdefault(token, known.get(token, 0.0))  # vLLM always includes the sampled token
        name, size = self.name(token, completion.tokens_as_ids), len(self.text(token))
        top = {self.name(other, completion.tokens_as_ids): value for other, value in best.items()}
        return {
            "text_offset": [size * number for number in range(first, first + times)],
            "token_logprobs": [best[token]] * times,
            "tokens": [name] * times,
            "top_logprobs": [top] * times,
        }


class _Reply:
    """What both kinds of answers share: identity, usage, and how the engine's failure reaches the handler."""

    def __init__(self, completion: Completion, texts: TokenTexts) -> None:
        self.id = f"cmpl-{uuid4().hex[:16]}"
        self.created = int(time.time())
        self._completion = completion
        self._texts = texts
        self._open = len(completion.prompts)
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def failed(self, error: Exception) -> None:
        """End with ``error``; see `app.emulator.requests.Reply`."""
        self._error = error
        self._changed.set()

    def usage(self) -> dict[str, int]:
        """Return the token counts of the whole request."""
        prompt, output = sum(map(len, self._completion.prompts)), sum(self._completion.limits)
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    def _head(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self._texts.manifest.model,
        }


class StreamReply(_Reply):
    """A streamed answer: one event per token of each sequence, in one piece per step."""

    def __init__(self, completion: Completion, texts: TokenTexts) -> None:
        super().__init__(completion, texts)
        self._pieces: list[bytes] = []
        self._middle: dict[int, bytes] = {}
        self._opening = f"data: {compact(self._head())[:-1]},"

    def tokens(self, sequences: Sequence[ActiveSequence]) -> None:
        """Queue the events of one step; see `app.emulator.requests.Reply`."""
        for sequence in sequences:
            self._pieces.append(self._event(sequence))
            self._open -= sequence.finished
        if not self._open:
            if self._completion.include_usage:
                self._pieces.append(self._usage_event())
            self._pieces.append(DONE)
        self._changed.set()

    async def next(self) -> tuple[bytes, bool]:
        """Wait for the next bytes; return them and whether more follow.

        Raises
        ------
        Exception
            What the engine failed with, once the tokens before it are out.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        piece = b"".join(self._pieces)
        self._pieces.clear()
        return piece, self._open > 0

    def _event(self, sequence: ActiveSequence) -> bytes:
        middle = sequence.produced > 1 and not sequence.finished and self._completion.logprobs is None
        if not middle:
            return self._write(sequence)
        event = self._middle.get(sequence.index)
        if event is None:
            event = self._middle[sequence.index] = self._write(sequence)
        return event

    def _write(self, sequence: ActiveSequence) -> bytes:
        completion, token = self._completion, sequence.token
        ids = completion.return_token_ids
        prompt = completion.prompts[sequence.index] if ids and sequence.produced == 1 else None
        logprobs = self._texts.logprobs(completion, token, sequence.produced - 1, 1)
        # A text is of digits, letters and underscores: nothing in it needs to be escaped.
        return (
            f'{self._opening}"choices":[{{"index":{sequence.index},"text":"{self._texts.text(token)}",'
            f'"logprobs":{_NULL if logprobs is None else compact(logprobs)},'
            f'"finish_reason":{_FINISHED if sequence.finished else _NULL},'
            f'"stop_reason":null,"prompt_token_ids":{_NULL if prompt is None else _compact_ids(prompt)},'
            f'"token_ids":{f"[{token}]" if ids else _NULL}}}]}}\n\n'
        ).encode()

    def _usage_event(self) -> bytes:
        tail = compact({"choices": [], "usage": self.usage(), "system_fingerprint": FINGERPRINT})
        return f"{self._opening}{tail[1:]}\n\n".encode()


class WholeReply(_Reply):
    """An answer in one body."""

    def tokens(self, sequences: Sequence[ActiveSequence]) -> None:
        """Count finished sequences; see `app.emulator.requests.Reply`."""
        self._open -= sum(sequence.finished for sequence in sequences)
        if not self._open:
            self._changed.set()

    async def body(self) -> bytes:
        """Wait for the last token; return the body.

        Raises
        ------
        Exception
            What the engine failed with.
        """
        await self._changed.wait()
        if self._error is not None:
            raise self._error
        document = {
            **self._head(),
            "choices": [self._choice(index) for index in range(len(self._completion.prompts))],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**self.usage(), "prompt_tokens_details": None, "completion_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return compact(document).encode()

    def _choice(self, index: int) -> dict[str, object]:
        completion = self._completion
        prompt, times = completion.prompts[index], completion.limits[index]
        token, ids = prompt[-1], completion.return_token_ids
        return {
            "index": index,
            "text": self._texts.text(token) * times,
            "logprobs": self._texts.logprobs(completion, token, 0, times),
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [token] * times if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": prompt if ids else None,
            "routed_experts": None,
        }
