"""The tensors of a probe model with random experts (FaultSense paper, 10.1145/3838177.3841737; DESIGN section 4).

An OLMoE layer in which the embedding of a token is the token's expert set: attention adds nothing (its output
projection is zero), the router's gate is the identity, so embedding dimension i selects expert i. The experts
do full-size matrix products and add a *small* term, and ``lm_head`` rows are the patterns again, so greedy
decoding repeats the token while its log-probabilities still show which experts were computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.probe_model.checkpoint import EMBEDDING, FINAL_NORM, LAYER, LM_HEAD, expert_key
from app.probe_model.echo import expected_logprobs, experts_add, make_lm_head, margin_taken, patterns
from app.probe_model.geometry import Geometry
from app.probe_model.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

EMBEDDING_SCALE = 64.0
"""Only the ratio to ``down_proj`` matters."""


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
        See `app.probe_model.echo.expected_logprobs`.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, geometry.dtype)
    weights = _attention(geometry, generator)
    for expert in range(geometry.experts):
        for name, tensor in _expert(geometry, generator).items():
            weights[expert_key(expert, name)] = tensor.to(dtype)
    _shrink_experts(geometry, vocabulary, weights)
    weights |= around_the_layer(geometry, vocabulary, EMBEDDING_SCALE)
    weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    return weights, expected_logprobs(geometry, vocabulary, weights, EMBEDDING_SCALE)


def around_the_layer(geometry: Geometry, vocabulary: Vocabulary, scale: float) -> dict[str, torch.Tensor]:
    """Everything that carries the patterns: embedding, router, norms before them, ``lm_head``; no attention."""
    import torch

    hidden = geometry.hidden
    return {
        EMBEDDING: scale * patterns(vocabulary.rows(), hidden),
        f"{LAYER}self_attn.o_proj.weight": torch.zeros(hidden, hidden),
        f"{LAYER}post_attention_layernorm.weight": torch.ones(hidden),
        f"{LAYER}mlp.gate.weight": torch.eye(geometry.experts, hidden),
        FINAL_NORM: torch.ones(hidden),
        LM_HEAD: make_lm_head(geometry, vocabulary, scale),
    }


def _attention(geometry: Geometry, generator: torch.Generator) -> dict[str, torch.Tensor]:
    import torch

    hidden = geometry.hidden
    return {
        **{
            f"{LAYER}{name}.weight": torch.ones(hidden)
            for name in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm")
        },
        **{f"{LAYER}self_attn.{name}_proj.weight": _random(hidden, hidden, generator) for name in "qkv"},
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
    rows = patterns(vocabulary.experts_by_token().values(), geometry.hidden)
    taken = margin_taken(rows, experts_add(rows, EMBEDDING_SCALE, geometry, weights))
    factor = 0.5 * EMBEDDING_SCALE / taken
    for name, tensor in weights.items():
        if name.endswith("down_proj.weight"):
            weights[name] = (factor * tensor.float()).to(tensor.dtype)
