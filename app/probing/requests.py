"""A probe's requests as bytes, prepared before anything is sent."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from app.localization.probes import Probe
from app.probing.access import RANK_HEADER, ProbeEndpoint, ReplicaAccess


def completion_body(
    access: ReplicaAccess, prompts: Sequence[Sequence[int]], *, max_tokens: int, stream: bool = True
) -> dict[str, Any]:
    """Body of a ``/v1/completions`` request for the probe model.

    ``cache_salt`` is fresh each time, so that no server answers from a prefix cache; ``return_token_ids``
    lets the echo be checked.
    """
    return {
        "model": access.model,
        "prompt": [list(p) for p in prompts],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        "return_token_ids": True,
        "cache_salt": secrets.token_hex(8),
    }


def rank_headers(endpoint: ProbeEndpoint, rank: int) -> dict[str, str]:
    """The header that picks a rank, where headers do."""
    if endpoint.rank_choice != "header":
        return {}
    return {RANK_HEADER: str(endpoint.ranks.index(rank))}


def prepare(
    access: ReplicaAccess, rank: int, body: dict[str, Any], endpoint: ProbeEndpoint | None = None
) -> bytes:
    """One complete HTTP/1.1 request, to one of the rank's endpoints; default: the first."""
    endpoint = endpoint or access.endpoint_of(rank)
    payload = json.dumps(body, separators=(",", ":")).encode()
    headers = {
        "Host": endpoint.target.authority,
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Content-Length": str(len(payload)),
        **rank_headers(endpoint, rank),
    }
    if access.bearer:
        headers["Authorization"] = f"Bearer {access.bearer}"
    lines = [f"POST {endpoint.target.path}/v1/completions HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + payload


def probe_prompts(access: ReplicaAccess, receivers: Iterable[int], *, tokens: int) -> list[list[int]]:
    """One prompt a sequence: the receiver's token, repeated; all its choices hit experts on that GPU.

    Parameters
    ----------
    receivers : iterable of int
        The receiver of each sequence.
    """
    return [[access.gpu_tokens[receiver]] * tokens for receiver in receivers]


def probe_tokens(probe: Probe, tokens_per_sequence: int) -> int:
    """Tokens that a probe costs the replica, prompts and answers together."""
    return int(probe.shape.edges.sequences.sum()) * tokens_per_sequence
