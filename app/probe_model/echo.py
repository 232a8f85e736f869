"""What a layer without attention and with the identity as router computes, and the projection that echoes.

Shared by the two makers of weights: `app.probe_model.weights` (random experts) and `app.probe_model.adopt`
(experts of a checkpoint). ``scale`` is the size of an embedding's ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from app.probe_model.checkpoint import LM_HEAD, expert_key
from app.probe_model.files import RMS_NORM_EPS
from app.probe_model.geometry import Geometry
from app.probe_model.vocabulary import ECHO_MARGIN, TOP_LOGPROBS, ExpertSet, Vocabulary

if TYPE_CHECKING:
    import torch

_CHUNK = 1024


def patterns(sets: Iterable[ExpertSet], hidden: int) -> torch.Tensor:
    """One row a set, (sets, hidden), float32: 1 at its experts."""
    import torch

    chosen = list(sets)
    rows = torch.zeros(len(chosen), hidden)
    return rows.scatter_(1, torch.tensor(chosen), 1.0)


def normalise(x: torch.Tensor) -> torch.Tensor:
    """RMS norm with a weight of ones."""
    return x / (x.pow(2).mean(dim=1, keepdim=True) + RMS_NORM_EPS).sqrt()


def experts_add(
    rows: torch.Tensor, scale: float, geometry: Geometry, weights: dict[str, torch.Tensor]
) -> torch.Tensor:
    """What the experts add to the residual stream of the pattern rows, (tokens, hidden), float32."""
    import torch

    return torch.cat([_add_chunk(chunk, scale, geometry, weights) for chunk in rows.split(_CHUNK)])


def _add_chunk(
    rows: torch.Tensor, scale: float, geometry: Geometry, weights: dict[str, torch.Tensor]
) -> torch.Tensor:
    import torch
    from torch.nn.functional import silu

    x = normalise(scale * rows)
    probabilities = x[:, : geometry.experts].softmax(dim=1)
    added = torch.zeros_like(x)
    for expert in range(geometry.experts):
        where = rows[:, expert].nonzero(as_tuple=True)[0]
        if where.numel():
            gate, up, down = (
                weights[expert_key(expert, name)].float() for name in ("gate_proj", "up_proj", "down_proj")
            )
            y = (silu(x[where] @ gate.T) * (x[where] @ up.T)) @ down.T
            added[where] += probabilities[where, expert, None] * y
    return added


def margin_taken(rows: torch.Tensor, added: torch.Tensor) -> float:
    """The largest part of any token's echo margin that the experts take, were embeddings of size one.

    The logit of pattern q after pattern p is proportional to ``(p + added) @ q``, so the margin is
    ``distance - gain`` with ``distance = p @ (p - q)`` and ``gain = added @ (q - p)``, taken by magnitude.

    Parameters
    ----------
    rows, added : torch.Tensor
        Patterns of all tokens that are emitted, and what the experts add to each, (tokens, hidden).
    """
    import torch

    # The row of zeros stands for the special ids, whose logit is 0.
    candidates = torch.cat([rows, torch.zeros(1, rows.shape[1])]).T
    taken = 0.0
    for own, more in _chunks(rows, added):
        distance = own.sum(dim=1, keepdim=True) - own @ candidates
        gain = more @ candidates - (more * own).sum(dim=1, keepdim=True)
        taken = max(taken, float((gain.abs() / distance).masked_fill(distance < 0.5, 0.0).max()))
    return taken


def make_lm_head(geometry: Geometry, vocabulary: Vocabulary, scale: float) -> torch.Tensor:
    """The output projection, (vocabulary, hidden): patterns, so large that the echo margin is `ECHO_MARGIN`."""
    own = vocabulary.experts_by_token()
    lm_head = patterns(vocabulary.rows(), geometry.hidden)
    per_expert = ECHO_MARGIN / vocabulary.separation
    share = geometry.top_k / geometry.hidden
    # The norm before it turns the ones of a pattern into 1 / sqrt(share), but for its epsilon.
    lm_head *= per_expert * math.sqrt(share + RMS_NORM_EPS / scale**2)
    for token in range(vocabulary.size):
        if token not in own:
            lm_head[token] = 0.0  # special and padding ids are never emitted
    return lm_head


def expected_logprobs(
    geometry: Geometry, vocabulary: Vocabulary, weights: dict[str, torch.Tensor], scale: float
) -> dict[int, list[tuple[int, float]]]:
    """The most likely tokens after each checked token and their log-probabilities, from the weights as stored.

    Returns
    -------
    dict of int to list of (int, float)
        By checked token: next token and log-probability, best first, six decimals.
    """
    checked = vocabulary.checked_tokens()
    rows = patterns(checked.values(), geometry.hidden)
    added = experts_add(rows, scale, geometry, weights)
    logits = normalise(scale * rows + added).double() @ weights[LM_HEAD].double().T
    best = logits.log_softmax(dim=1).topk(TOP_LOGPROBS, dim=1)
    return {
        token: [(int(i), min(0.0, round(float(v), 6))) for i, v in zip(ids, values, strict=True)]
        for token, ids, values in zip(checked, best.indices, best.values, strict=True)
    }


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.split(_CHUNK) for tensor in tensors), strict=True)
