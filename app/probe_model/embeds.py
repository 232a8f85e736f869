"""The paper's way to choose experts: the embedding itself is sent, as vLLM's ``prompt_embeds``.

Needed only for expert sets that have no token. Off by default, and for private networks and trusted users alone: a
server that takes embeddings loads tensors that clients made, and crafted ones once corrupted its memory
(CVE-2025-62164).
A request carries either ``prompt`` or ``prompt_embeds``: vLLM answers both at once with two choices.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from app.probe_model.checkpoint import EMBEDDING
from app.probe_model.errors import ProbeModelError
from app.probe_model.files import WEIGHTS_FILE
from app.probe_model.manifest import Manifest, load_manifest, set_key
from app.probe_model.vocabulary import TOP_LOGPROBS, ExpertSet

SERVER_OPTION = "--enable-prompt-embeds"
_NUMBERS = re.compile(r"[0-9]{1,5}(?:,[0-9]{1,5})*")


def parse_experts(text: str) -> ExpertSet:
    """Read ``1,3,5,6``, or the paper's pattern ``[0,1,0,1,0,1,1,0]`` of one digit an expert.

    Raises
    ------
    ProbeModelError
        Neither of the two.
    """
    compact = text.replace(" ", "")
    inner = compact.removeprefix("[").removesuffix("]")
    if _NUMBERS.fullmatch(inner):
        numbers = tuple(map(int, inner.split(",")))
        if compact == inner:
            return tuple(sorted(numbers))
        if compact == f"[{inner}]" and set(numbers) <= {0, 1}:
            return tuple(expert for expert, chosen in enumerate(numbers) if chosen)
    raise ProbeModelError("experts", "write experts as 1,3,5,6 or as a pattern [0,1,0,1,0,1,1,0]")


def embeds_request(
    folder: Path, experts: Sequence[int], *, tokens: int = 1, max_tokens: int = 1
) -> dict[str, Any]:
    """Make the body of ``POST /v1/completions`` whose prompt activates exactly these experts.

    Parameters
    ----------
    folder : Path
        Probe model folder.
    experts : sequence of int
        As many distinct experts as a token activates.
    tokens : int
        Length of the prompt, every position alike.
    max_tokens : int
        Tokens to decode. They activate the same experts only where the vocabulary has a token for the set.

    Returns
    -------
    dict
        With ``prompt_embeds``, a saved tensor (tokens, hidden) of the model's dtype in base64, and no ``prompt``.

    Raises
    ------
    ProbeModelError
        A set that no token could have, too long a prompt, or a folder that is not a probe model.
    """
    manifest = load_manifest(folder)
    chosen = tuple(sorted(experts))
    if len(set(chosen)) != manifest.top_k or len(chosen) != manifest.top_k:
        raise ProbeModelError("experts", f"give {manifest.top_k} distinct ones; the router takes no other number")
    if not 0 <= chosen[0] <= chosen[-1] < manifest.experts:
        raise ProbeModelError("experts", f"go from 0 to {manifest.experts - 1}")
    if tokens < 1 or max_tokens < 1 or tokens + max_tokens > manifest.max_model_len:
        raise ProbeModelError("tokens", f"prompt and answer need 1 token each, {manifest.max_model_len} in all")
    if tokens > manifest.max_num_batched_tokens:
        raise ProbeModelError("tokens", f"must be at most {manifest.max_num_batched_tokens}, one step")
    return {
        "model": manifest.model,
        "prompt_embeds": _encode(folder, manifest, chosen, tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP_LOGPROBS,
        "return_token_ids": True,
    }


def _encode(folder: Path, manifest: Manifest, experts: ExpertSet, tokens: int) -> str:
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as weights:
            row = weights.get_slice(EMBEDDING)[manifest.gpu_tokens[0]]
    except (SafetensorError, OSError, IndexError) as error:
        raise ProbeModelError(WEIGHTS_FILE, f"the embedding cannot be read ({str(error)[:200]})") from error
    values = row[row != 0].unique()
    if row.shape != (manifest.hidden_size,) or len(values) != 1:
        raise ProbeModelError(WEIGHTS_FILE, "its embedding is not a pattern; build the model again")
    embeds = torch.zeros(tokens, manifest.hidden_size, dtype=row.dtype)
    embeds[:, list(experts)] = values
    buffer = io.BytesIO()
    torch.save(embeds, buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True, slots=True)
class EmbedsAnswer:
    """What followed the embeddings.

    Parameters
    ----------
    tokens : tuple of int
        Decoded token ids.
    logprobs : dict of str to float
        The most likely first tokens, by their text, and their log-probabilities.
    """

    tokens: tuple[int, ...]
    logprobs: dict[str, float]


class _Logprobs(BaseModel):
    top_logprobs: Annotated[list[dict[str, StrictFloat]], Field(min_length=1)]


class _Choice(BaseModel):
    token_ids: Annotated[tuple[StrictInt, ...], Field(min_length=1)]
    logprobs: _Logprobs


class _Answer(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]


def read_answer(status: int, body: bytes) -> EmbedsAnswer:
    """Read a server's answer to `embeds_request`; its text is never repeated.

    Raises
    ------
    ProbeModelError
        The server does not take embeddings, refuses the request for another reason, or answers something else.
    """
    if status == 400 and SERVER_OPTION in _error_message(body):
        raise ProbeModelError(
            "prompt_embeds",
            f"the server takes none (400); start it with {SERVER_OPTION}, on a private network and for trusted"
            " users only, or probe with the tokens of the manifest",
        )
    if status != 200:
        raise ProbeModelError("prompt_embeds", f"the server answered {status}; does it serve this probe model?")
    try:
        (choice,) = _Answer.model_validate_json(body).choices
    except ValidationError as error:
        raise ProbeModelError(
            "prompt_embeds", "the answer is not one completion with token ids and log-probabilities"
        ) from error
    return EmbedsAnswer(choice.token_ids, choice.logprobs.top_logprobs[0])


def check_echo(manifest: Manifest, experts: ExpertSet, answer: EmbedsAnswer) -> int | None:
    """The token that stands for the set and must follow it; None when the vocabulary has none.

    Raises
    ------
    ProbeModelError
        Another token followed: the server does not serve this probe model.
    """
    expected = manifest.pattern_tokens.get(set_key(experts))
    if expected is not None and set(answer.tokens) != {expected}:
        raise ProbeModelError("prompt_embeds", f"token {expected} must follow; another probe model is served")
    return expected


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
