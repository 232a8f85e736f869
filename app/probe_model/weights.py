"""The tensors of the one-layer probe model (FaultSense paper, 10.1145/3838177.3841737; DESIGN section 4).

An OLMoE layer in which the embedding of a token is the token's expert set: attention adds nothing (its output
projection is zero), the router's gate is the identity, so embedding dimension i selects expert i. The experts
do full-size matrix products and add a *small* term, and ``lm_head`` rows are the patterns again, so greedy
decoding repeats the token while its log-probabilities still show which experts were computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from app.probe_model.geometry import Geometry
from app.probe_model.vocabulary import ECHO_MARGIN, TOP_LOGPROBS, ExpertSet, Vocabulary

if TYPE_CHECKING:
    import torch

EMBEDDING_SCALE = 64.0
"""Makes the epsilon of the RMS norms negligible, so that only the ratio to ``down_proj`` matters."""
_LAYER = "model.layers.0."
_CHUNK = 1024


def make_weights(
    geometry: Geometry, vocabulary: Vocabulary, seed: int
) -> tuple[dict[str, torch.Tensor], dict[int, list[tuple[int, float]]]]:
    """Make every tensor, and the log-probabilities of the most likely tokens after each checked token.

    Parameters
    ----------
    geometry : Geometry
        Shapes and dtype.
    vocabulary : Vocabulary
        Expert sets by token.
    seed : int
        Seed of the attention and expert weights.

    Returns
    -------
    weights : dict of str to torch.Tensor
        By their names in an OLMoE checkpoint.
    logprobs : dict of int to list of (int, float)
        By checked token: next token and log-probability, best first, six decimals.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, geometry.dtype)
    weights = _attention_and_router(geometry, generator)
    for expert in range(geometry.experts):
        for name, tensor in _expert(geometry, generator).items():
            weights[f"{_LAYER}mlp.experts.{expert}.{name}.weight"] = tensor.to(dtype)
    _shrink_experts(geometry, vocabulary, weights)
    weights["model.embed_tokens.weight"] = EMBEDDING_SCALE * _patterns(vocabulary.rows(), geometry.hidden)
    weights["lm_head.weight"] = _lm_head(geometry, vocabulary)
    weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    return weights, _logprobs(geometry, vocabulary, weights)


def _attention_and_router(geometry: Geometry, generator: torch.Generator) -> dict[str, torch.Tensor]:
    import torch

    hidden = geometry.hidden
    norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    return {
        "model.norm.weight": torch.ones(hidden),
        **{f"{_LAYER}{name}.weight": torch.ones(hidden) for name in norms},
        **{f"{_LAYER}self_attn.{name}_proj.weight": _random(hidden, hidden, generator) for name in "qkv"},
        f"{_LAYER}self_attn.o_proj.weight": torch.zeros(hidden, hidden),
        f"{_LAYER}mlp.gate.weight": torch.eye(geometry.experts, hidden),
    }


def _random(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Standard normal, scaled so that an RMS-normalised input gives outputs of size one."""
    import torch

    return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)


def _expert(geometry: Geometry, generator: torch.Generator) -> dict[str, torch.Tensor]:
    down = _random(geometry.hidden, geometry.intermediate, generator)
    # lm_head reads only the expert dimensions; an output elsewhere would be diluted instead of seen.
    down[geometry.experts :] = 0.0
    return {
        "gate_proj": _random(geometry.intermediate, geometry.hidden, generator),
        "up_proj": _random(geometry.intermediate, geometry.hidden, generator),
        "down_proj": down,
    }


def _shrink_experts(geometry: Geometry, vocabulary: Vocabulary, weights: dict[str, torch.Tensor]) -> None:
    """Scale ``down_proj`` so that what the experts add takes at most half of any token's echo margin.

    Greedy decoding then repeats every token, and a wrong expert is as visible as that allows.
    """
    import torch

    rows = _patterns(vocabulary.experts_by_token().values(), geometry.hidden)
    added = torch.cat([_experts_add(chunk, geometry, weights) for (chunk,) in _chunks(rows)])
    taken = max(_margin_taken(chunk, more, rows) for chunk, more in _chunks(rows, added))
    factor = 0.5 * EMBEDDING_SCALE / taken
    for name, tensor in weights.items():
        if name.endswith("down_proj.weight"):
            weights[name] = (factor * tensor.float()).to(tensor.dtype)


def _lm_head(geometry: Geometry, vocabulary: Vocabulary) -> torch.Tensor:
    own = vocabulary.experts_by_token()
    lm_head = _patterns(vocabulary.rows(), geometry.hidden)
    per_expert = ECHO_MARGIN / vocabulary.separation
    lm_head *= per_expert * math.sqrt(geometry.top_k / geometry.hidden)
    for token in range(vocabulary.size):
        if token not in own:
            lm_head[token] = 0.0  # special and padding ids are never emitted
    return lm_head


def _logprobs(
    geometry: Geometry, vocabulary: Vocabulary, weights: dict[str, torch.Tensor]
) -> dict[int, list[tuple[int, float]]]:
    """The most likely tokens after each checked token, from the weights as stored."""
    checked = vocabulary.checked_tokens()
    rows = _patterns(checked.values(), geometry.hidden)
    added = _experts_add(rows, geometry, weights)
    logits = _normalise(EMBEDDING_SCALE * rows + added).double() @ weights["lm_head.weight"].double().T
    best = logits.log_softmax(dim=1).topk(TOP_LOGPROBS, dim=1)
    return {
        token: [(int(i), min(0.0, round(float(v), 6))) for i, v in zip(ids, values, strict=True)]
        for token, ids, values in zip(checked, best.indices, best.values, strict=True)
    }


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.split(_CHUNK) for tensor in tensors), strict=True)


def _margin_taken(rows: torch.Tensor, added: torch.Tensor, emitted: torch.Tensor) -> float:
    """The largest part of the echo margin that the experts take, were embeddings of size one.

    The logit of pattern q after pattern p is proportional to ``(p + added) @ q``, so the margin is
    ``distance - gain`` with ``distance = p @ (p - q)`` and ``gain = added @ (q - p)``, taken by magnitude.
    """
    import torch

    own = rows.sum(dim=1, keepdim=True)
    # The row of zeros stands for the special ids, whose logit is 0.
    candidates = torch.cat([emitted, torch.zeros(1, emitted.shape[1])]).T
    distance = own - rows @ candidates
    gain = added @ candidates - (added * rows).sum(dim=1, keepdim=True)
    return float((gain.abs() / distance).masked_fill(distance < 0.5, 0.0).max())


def _patterns(sets: Iterable[ExpertSet], hidden: int) -> torch.Tensor:
    import torch

    chosen = list(sets)
    rows = torch.zeros(len(chosen), hidden)
    return rows.scatter_(1, torch.tensor(chosen), 1.0)


def _normalise(x: torch.Tensor) -> torch.Tensor:
    """RMS norm; its epsilon is negligible at `EMBEDDING_SCALE`."""
    return x / x.pow(2).mean(dim=1, keepdim=True).sqrt()


def _experts_add(rows: torch.Tensor, geometry: Geometry, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the experts add to the residual stream, (tokens, hidden); the scale of rows does not matter."""
    import torch
    from torch.nn.functional import silu

    x = _normalise(rows)
    probabilities = x[:, : geometry.experts].softmax(dim=1)
    added = torch.zeros_like(x)
    for expert in range(geometry.experts):
        where = rows[:, expert].nonzero(as_tuple=True)[0]
        if where.numel():
            prefix = f"{_LAYER}mlp.experts.{expert}."
            gate, up, down = (
                weights[f"{prefix}{name}.weight"].float() for name in ("gate_proj", "up_proj", "down_proj")
            )
            y = (silu(x[where] @ gate.T) * (x[where] @ up.T)) @ down.T
            added[where] += probabilities[where, expert, None] * y
    return added
