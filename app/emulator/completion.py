"""Read a /v1/completions body, as far as a prober uses it; unknown fields are ignored, as vLLM does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.emulator.errors import ApiError, invalid_body

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
MAX_SEQUENCES = 1024


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a served model accepts: its name, vocabulary size (padding included) and context length."""

    model: str
    vocabulary_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A valid completion request.

    ``limits[i]`` is the number of output tokens of ``prompts[i]``, cut to the context length.
    ``logprobs`` is how many alternatives to report, None for no log-probabilities.
    """

    prompts: tuple[tuple[int, ...], ...]
    limits: tuple[int, ...]
    stream: bool
    return_token_ids: bool
    include_usage: bool
    logprobs: int | None
    tokens_as_ids: bool


def parse_completion(body: bytes, limits: ModelLimits) -> Completion:
    """Read a request body.

    Parameters
    ----------
    body : bytes
        JSON.
    limits : ModelLimits
        The served model.

    Raises
    ------
    ApiError
        400 for anything malformed or out of range, 404 for another model.
    """
    document = _load(body)
    stream, token_ids = _flag(document, "stream"), _flag(document, "return_token_ids")
    logprobs, max_tokens = _logprobs(document), _max_tokens(document)
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong_type("stream_options", "model_attributes_type", "a valid dictionary", options)
    if _integer(document, "n", 1) != 1:
        raise ApiError(400, "The emulator answers one choice per prompt: n must be 1.", param="n")
    prompts = _prompts(document)
    model = document.get("model")
    if model is not None and model != limits.model:
        text = f"The model `{model}` does not exist. Valid aliases: {limits.model}."
        raise ApiError(404, text, "NotFoundError", "model")
    for prompt in prompts:
        _check_prompt(prompt, limits)
    return Completion(
        prompts,
        tuple(min(max_tokens, limits.max_model_len - len(prompt)) for prompt in prompts),
        stream,
        token_ids,
        _flag(options, "include_usage"),
        logprobs,
        _flag(document, "return_tokens_as_token_ids"),
    )


def _load(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", 0)
        reason = getattr(error, "msg", "not readable")
        problem: dict[str, object] = {
            "type": "json_invalid",
            "loc": f"body.{at}",
            "msg": "JSON decode error",
            "input": "{}",
            "ctx": {"error": reason},
        }
        raise invalid_body([problem], f"body.{at}") from None
    if not isinstance(document, dict):
        raise _wrong_type("", "model_attributes_type", "a valid dictionary or object", document)
    return document


def _wrong_type(field: str, kind: str, expected: str, value: object) -> ApiError:
    where = f"body.{field}" if field else "body"
    problem: dict[str, object] = {
        "type": kind,
        "loc": where,
        "msg": f"Input should be {expected}",
        "input": _shown(value),
    }
    return invalid_body([problem], where)


def _shown(value: object) -> str:
    return f"<list of {len(value)} items>" if isinstance(value, list) else str(value)[:100]


def _flag(document: Mapping[str, Any], field: str) -> bool:
    value = document.get(field)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _wrong_type(field, "bool_type", "a valid boolean", value)


def _integer(document: Mapping[str, Any], field: str, default: int | None) -> int | None:
    value = document.get(field, default)
    if value is None or type(value) is int:
        return value
    raise _wrong_type(field, "int_type", "a valid integer", value)


def _max_tokens(document: Mapping[str, Any]) -> int:
    value = _integer(document, "max_tokens", DEFAULT_MAX_TOKENS)
    if value is None:
        return DEFAULT_MAX_TOKENS
    if value < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {value}.", param="max_tokens")
    return value


def _logprobs(document: Mapping[str, Any]) -> int | None:
    value = _integer(document, "logprobs", None)
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        text = f"Requested sample logprobs of {value}, which is not within 0 to {MAX_LOGPROBS}"
        raise ApiError(400, text, param="logprobs")
    return value


def _prompts(document: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    if document.get("prompt_embeds") is not None:
        text = "You must set `--enable-prompt-embeds` to input `prompt_embeds`. (parameter=prompt_embeds)"
        raise ApiError(400, text, param="prompt_embeds")
    prompt = document.get("prompt")
    if not isinstance(prompt, list):
        raise _wrong_type("prompt", "list_type", "a list of token ids or a list of such lists", prompt)
    nested = bool(prompt) and all(isinstance(item, list) for item in prompt)
    lists = prompt if nested else [prompt]
    if len(lists) > MAX_SEQUENCES:
        raise ApiError(400, f"At most {MAX_SEQUENCES} prompts per request.", param="prompt")
    for index, tokens in enumerate(lists):
        _check_tokens(prompt, tokens, f"body.prompt.{index}" if nested else "body.prompt")
    return tuple(map(tuple, lists))


def _check_tokens(prompt: list[Any], tokens: list[Any], where: str) -> None:
    if not tokens:
        raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
    if set(map(type, tokens)) == {int} and min(tokens) >= 0:
        return
    at, bad = next((i, token) for i, token in enumerate(tokens) if type(token) is not int or token < 0)
    loc, shown = f"{where}.{at}", _shown(bad)
    problem: dict[str, object] = {"type": "int_type", "loc": loc, "msg": "Input should be a valid integer"}
    if type(bad) is int:
        problem.update(type="greater_than_equal", msg="Input should be greater than or equal to 0")
    problem["input"] = shown
    if type(bad) is int:
        problem["ctx"] = {"ge": 0}
    not_a_list: dict[str, object] = {
        "type": "list_type",
        "loc": loc,
        "msg": "Input should be a valid list",
        "input": shown,
    }
    problems = [problem, not_a_list, _not_a_string("body.prompt", _shown(prompt)), _not_a_string(loc, shown)]
    raise invalid_body(problems, loc)


def _not_a_string(loc: str, shown: str) -> dict[str, object]:
    return {"type": "string_type", "loc": loc, "msg": "Input should be a valid string", "input": shown}


def _check_prompt(prompt: tuple[int, ...], limits: ModelLimits) -> None:
    if len(prompt) >= limits.max_model_len:
        text = (
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains"
            f" {len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce"
            f" the length of the input prompt. (parameter=input_tokens, value={len(prompt)})"
        )
        raise ApiError(400, text, param="input_tokens")
    if max(prompt) >= limits.vocabulary_size:
        raise ApiError(400, f"Token id {max(prompt)} is out of vocabulary")
