"""The tensors of a probe model whose experts are those of a checkpoint's first layer, bit for bit.

Attention, experts and the norm before attention are the checkpoint's; what carries the patterns is replaced as in
`app.probe_model.weights`. Since the experts stay as large as they are, the embeddings are scaled until the
residual dominates what the experts add; the RMS norms leave the routing unchanged by that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.probe_model.checkpoint import LAYER, Checkpoint, expert_key
from app.probe_model.echo import expected_logprobs, experts_add, margin_taken, patterns
from app.probe_model.errors import ProbeModelError
from app.probe_model.files import RMS_NORM_EPS
from app.probe_model.geometry import Geometry
from app.probe_model.vocabulary import Vocabulary
from app.probe_model.weights import EMBEDDING_SCALE, around_the_layer

if TYPE_CHECKING:
    import torch

SHARE = 0.5
"""The part of the echo margin that the experts may take."""
_KEPT = ("input_layernorm", *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")))


def adopt_weights(
    checkpoint: Checkpoint, geometry: Geometry, vocabulary: Vocabulary
) -> tuple[dict[str, torch.Tensor], dict[int, list[tuple[int, float]]]]:
    """Make every tensor, and the log-probabilities of the most likely tokens after each checked token.

    Returns
    -------
    weights : dict of str to torch.Tensor
        By their names in an OLMoE checkpoint.
    logprobs : dict of int to list of (int, float)
        See `app.probe_model.echo.expected_logprobs`.

    Raises
    ------
    ProbeModelError
        A file changed since it was checked or holds values that are not finite, or no embedding makes these
        experts' tokens echo.
    """
    import torch

    dtype: torch.dtype = getattr(torch, geometry.dtype)
    weights = _read(checkpoint, dtype)
    scale = _choose_scale(geometry, vocabulary, weights, dtype)
    weights |= {name: tensor.to(dtype) for name, tensor in around_the_layer(geometry, vocabulary, scale).items()}
    return weights, expected_logprobs(geometry, vocabulary, weights, scale)


def _read(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Read the kept tensors, file by file."""
    import torch
    from safetensors import SafetensorError, safe_open

    keys = [f"{LAYER}{name}.weight" for name in _KEPT]
    for expert in range(checkpoint.config.num_experts):
        keys += [expert_key(expert, name) for name in ("gate_proj", "up_proj", "down_proj")]
    weights: dict[str, torch.Tensor] = {}
    for file in dict.fromkeys(checkpoint.tensors[key].file for key in keys):
        try:
            with safe_open(file, framework="pt") as tensors:
                for key in keys:
                    if checkpoint.tensors[key].file == file:
                        weights[key] = tensors.get_tensor(key).to(dtype)
        except SafetensorError as error:
            raise ProbeModelError(file.name, f"cannot be read ({str(error)[:200]})") from error
    for key, tensor in weights.items():
        if tuple(tensor.shape) != checkpoint.tensors[key].shape:
            raise ProbeModelError(f"{checkpoint.tensors[key].file.name}: {key}", "changed while it was read")
        if not bool(torch.isfinite(tensor).all()):
            raise ProbeModelError(
                f"{checkpoint.tensors[key].file.name}: {key}",
                "holds values that are not finite",
            )
    return {key: weights[key] for key in keys}


def _choose_scale(
    geometry: Geometry, vocabulary: Vocabulary, weights: dict[str, torch.Tensor], dtype: torch.dtype
) -> float:
    """The size of embeddings at which the experts take `SHARE` of the echo margin, or less.

    Not so small that the epsilon of the norms rules the router, and a value of the dtype, so that it is exact.
    """
    import torch

    rows = patterns(vocabulary.experts_by_token().values(), geometry.hidden)
    added = experts_add(rows, EMBEDDING_SCALE, geometry, weights)
    if not bool(torch.isfinite(added).all()):
        raise ProbeModelError("from", "the experts' products overflow; this is no trained checkpoint")
    taken = margin_taken(rows, added)
    if taken == 0.0:
        raise ProbeModelError("from", "the experts add nothing, so log-probabilities could not show a wrong one")
    least = math.sqrt(RMS_NORM_EPS * geometry.hidden / geometry.top_k)
    # A little more than asked, so that rounding to the dtype cannot make it less.
    scale = float(torch.tensor(1.01 * max(taken / SHARE, least)).to(dtype))
    if not math.isfinite(scale) or scale > torch.finfo(dtype).max / 4:
        raise ProbeModelError(
            "from",
            f"{geometry.dtype} embeddings large enough to echo would overflow; take bfloat16 or float32",
        )
    share = margin_taken(rows, experts_add(rows, scale, geometry, weights)) / scale
    if not share <= SHARE:
        raise ProbeModelError("from", f"tokens would not echo: the experts take {share:.2f} of the margin")
    return scale
