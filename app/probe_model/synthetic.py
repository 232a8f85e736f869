"""A manifest without a model: for the emulator, the demo and tests. Needs no torch."""

from __future__ import annotations

import numpy as np

from app.probe_model.geometry import SIZE_MULTIPLE, Geometry
from app.probe_model.manifest import DType, Manifest
from app.probe_model.vocabulary import ECHO_MARGIN, TOP_LOGPROBS, Vocabulary


def synthetic_manifest(
    gpus: int,
    *,
    experts_per_gpu: int = 2,
    top_k: int = 2,
    hidden: int | None = None,
    model: str = "probe",
    dtype: DType = "float32",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 4096,
) -> Manifest:
    """Make the manifest that `app.probe_model.build.build` would write, up to its log-probabilities.

    Token ids, sizes and limits are the builder's. The log-probabilities are those of a probe model whose
    experts add nothing: the logit of a next token is proportional to the number of experts in common.

    Parameters
    ----------
    gpus : int
        Number of ranks, 2 to 1024.
    experts_per_gpu, top_k : int
        Expert layout; ``experts_per_gpu >= top_k``.
    hidden : int, optional
        Hidden size; by default the smallest that fits the experts.
    model : str
        Served model name.
    max_num_seqs : int, optional
        By default 64 or the number of GPUs, whichever is larger: one sequence per destination must fit.

    Raises
    ------
    ProbeModelError
        A value out of range.
    """
    geometry = Geometry(
        gpus,
        experts_per_gpu,
        top_k,
        hidden if hidden is not None else -(-gpus * experts_per_gpu // SIZE_MULTIPLE) * SIZE_MULTIPLE,
        dtype=dtype,
        max_num_seqs=max(64, gpus) if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    vocabulary = geometry.vocabulary()
    return geometry.manifest(model, vocabulary, _ideal_logprobs(vocabulary, geometry.experts))


def _ideal_logprobs(vocabulary: Vocabulary, experts: int) -> dict[int, list[tuple[int, float]]]:
    own = vocabulary.experts_by_token()
    emitted = np.zeros((vocabulary.size, experts), dtype=np.float32)  # special and padding ids: logit 0
    for token, chosen in own.items():
        emitted[token, list(chosen)] = 1.0
    per_expert = ECHO_MARGIN / vocabulary.separation
    return {
        token: _top(per_expert * emitted[:, list(chosen)].sum(axis=1, dtype=np.float64))
        for token, chosen in vocabulary.checked_tokens().items()
    }


def _top(logits: np.ndarray) -> list[tuple[int, float]]:
    best = np.argsort(-logits, kind="stable")[:TOP_LOGPROBS]
    peak = logits[best[0]]
    total = peak + np.log(np.exp(logits - peak).sum())
    return [(int(token), min(0.0, round(float(logits[token] - total), 6))) for token in best]
