"""Checks before the first probe: is this the manifest's model, with the declared ranks and routing?"""

from __future__ import annotations

import asyncio
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from app.outbound import GuardError, guarded_client
from app.outbound.http import ResponseTooLargeError, get_capped, post_capped, tls_failure
from app.probing.access import ProbeEndpoint, ReplicaAccess
from app.probing.errors import PreflightError
from app.probing.requests import completion_body, probe_prompts, rank_headers

LOGPROB_TOLERANCE = 0.05
CHECK_TOKENS = 4
TIMEOUT_S = 10.0
DOWN = frozenset({"endpoint_unreachable", "endpoint_silent"})


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the replica says of itself.

    Parameters
    ----------
    engine : str or None
        Version of the engine.
    max_model_len : int or None
        Longest sequence that it takes.
    """

    engine: str | None
    max_model_len: int | None


async def preflight(access: ReplicaAccess) -> Preflight:
    """Check every endpoint.

    Raises
    ------
    PreflightError
        Unreachable, another model, fewer ranks than declared, or no echo; says which endpoint and what to do.
    """
    async with guarded_client(
        access.guard, ca_pem=access.ca_pem, bearer=access.bearer, timeout_s=TIMEOUT_S
    ) as client:
        found = await asyncio.gather(
            *(_check(client, access, endpoint) for endpoint in access.endpoints), return_exceptions=True
        )
    answered = [result for result in found if isinstance(result, Preflight)]
    for endpoint, result in zip(access.endpoints, found, strict=True):
        # One rank's own URL that is down is a finding, for the first probe to make; all URLs down is not.
        down = isinstance(result, PreflightError) and result.code in DOWN
        if isinstance(result, BaseException) and not (down and answered and endpoint.rank_choice == "url"):
            raise result
    return answered[0]


async def _check(client: httpx.AsyncClient, access: ReplicaAccess, endpoint: ProbeEndpoint) -> Preflight:
    url = endpoint.target.url
    try:
        max_model_len = await _check_model(client, access, url)
        engine = await _version(client, url)
        # A rank that takes the request and stays silent is a hang: the first probe finds out which.
        with suppress(httpx.ReadTimeout):
            await _check_rank(client, access, endpoint)
    except ResponseTooLargeError as error:
        raise PreflightError("bad_response", f"{url}: {error}") from None
    except GuardError as error:
        raise PreflightError("address_refused", f"{url}: {error}") from None
    except httpx.HTTPError as error:
        raise _unreachable(url, error) from None
    return Preflight(engine, max_model_len)


def _unreachable(url: str, error: httpx.HTTPError) -> PreflightError:
    tls = tls_failure(error)
    if tls is not None:
        return PreflightError("tls_failed", f"{url}: {tls}")
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return PreflightError("endpoint_silent", f"{url} did not answer within {TIMEOUT_S:g} s")
    return PreflightError(
        "endpoint_unreachable", f"{url} cannot be reached ({type(error).__name__}); is the server up?"
    )


async def _check_model(client: httpx.AsyncClient, access: ReplicaAccess, url: str) -> int | None:
    status, body = await get_capped(client, f"{url}/v1/models")
    models = _document(status, body, f"{url}/v1/models").get("data")
    listed = models if isinstance(models, list) else []
    served = {m["id"]: m for m in listed if isinstance(m, dict) and isinstance(m.get("id"), str)}
    if access.model not in served:
        others = ", ".join(sorted(_plain(name, 60) for name in served)[:5]) or "none"
        raise PreflightError(
            "model_mismatch",
            f"{url} serves {others}, not the manifest's model {access.model!r}; serve the probe model under that"
            " name or register the manifest of the model that is served",
        )
    length = served[access.model].get("max_model_len")
    return length if type(length) is int else None


async def _version(client: httpx.AsyncClient, url: str) -> str | None:
    status, body = await get_capped(client, f"{url}/version")
    if status != 200:
        return None
    version = _document(status, body, f"{url}/version").get("version")
    return _plain(version, 100) if isinstance(version, str) else None


def _plain(text: str, length: int) -> str:
    """What a server calls something, fit for a log and for PostgreSQL: no NUL, no lone surrogate."""
    return "".join(c for c in text[:length] if c.isprintable())


async def _check_rank(client: httpx.AsyncClient, access: ReplicaAccess, endpoint: ProbeEndpoint) -> None:
    """Ask the endpoint's last rank for an echo: it exists, it is the right model, and its experts answer."""
    rank, url = endpoint.ranks[-1], endpoint.target.url
    prompts = probe_prompts(access, [rank], tokens=CHECK_TOKENS)
    body = completion_body(access, prompts, max_tokens=CHECK_TOKENS, stream=False)
    token = access.gpu_tokens[rank]
    expected = access.logprobs.get(token)
    if expected is not None:
        body["logprobs"] = 1
    status, answer = await post_capped(client, f"{url}/v1/completions", body, rank_headers(endpoint, rank))
    if status == 400 and (found := re.search(rb"out of range \[0, (\d{1,6})\)", answer)):
        raise PreflightError(
            "too_few_ranks",
            f"{url} has {int(found[1])} data-parallel ranks; ranks {endpoint.ranks[0]}-{rank} are declared to be"
            " behind it",
        )
    choice = _first_choice(_document(status, answer, f"{url}/v1/completions"), url)
    if choice.get("token_ids") != [token] * CHECK_TOKENS:
        raise PreflightError(
            "echo_broken",
            f"{url}: token {token} of GPU {rank} is not answered by itself; the served model is not the"
            " manifest's probe model, or its routing is changed (EPLB must be off)",
        )
    if expected is not None:
        _check_logprobs(choice, expected, url, rank)


def _check_logprobs(choice: dict[str, Any], expected: float, url: str, rank: int) -> None:
    """The first log-probability depends on the experts' weights: a wrong MoE differs by far more."""
    try:
        got = float(choice["logprobs"]["token_logprobs"][0])
    except OverflowError:
        got = math.inf
    except (KeyError, TypeError, ValueError, IndexError):
        return
    if not abs(got - expected) <= LOGPROB_TOLERANCE:
        raise PreflightError(
            "logprobs_differ",
            f"{url}: the log-probability of GPU {rank}'s token is {got:.3f}, the manifest says {expected:.3f};"
            " the experts that answer are not the manifest's",
        )


def _first_choice(document: dict[str, Any], url: str) -> dict[str, Any]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PreflightError("bad_response", f"{url}/v1/completions does not answer as vLLM does")
    return choices[0]


def _document(status: int, body: bytes, place: str) -> dict[str, Any]:
    if status in {401, 403}:
        raise PreflightError("unauthorized", f"{place} answers {status}; set auth.bearer of the replica")
    if status != 200:
        raise PreflightError("bad_response", f"{place} answers {status}")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise PreflightError("bad_response", f"{place} does not answer with a JSON object")
    return document
