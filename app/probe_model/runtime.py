"""What a GPU needs beside the weights: an estimate from shapes and limits, as vLLM allocates it.

Left out, because it does not depend on the model: the device context, the libraries' own workspaces, captured
graphs and the buffers of the all-to-all backend.
"""

from __future__ import annotations

from dataclasses import dataclass

KV_BLOCK_TOKENS = 16
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the server is started with.

    Parameters
    ----------
    max_num_seqs, max_num_batched_tokens, max_model_len : int
        vLLM's options of these names.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    max_model_len: int = 4096


@dataclass(frozen=True, slots=True)
class Runtime:
    """Bytes beside the weights, counted as if all were alive at once.

    Parameters
    ----------
    kv_cache : int
        The least that is useful: keys and values of one longest sequence or one full step, whichever is more.
    activations : int
        Of a full step: residual, norm output, queries, keys, values, attention output and router logits a token,
        and logits and log-probabilities (float32) a sequence.
    workspace : int
        Two buffers of the expert kernel, one row a token and chosen expert; vLLM's Triton kernel sizes them by
        max(intermediate, hidden) and max(2 * intermediate, hidden).
    """

    kv_cache: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.kv_cache + self.activations + self.workspace


def estimate_runtime(
    limits: Limits,
    *,
    hidden: int,
    key_value_width: int,
    intermediate: int,
    experts: int,
    top_k: int,
    vocabulary: int,
    item_bytes: int,
) -> Runtime:
    """Estimate the memory of one rank's full step.

    Parameters
    ----------
    limits : Limits
        Of the server.
    hidden, key_value_width, intermediate, experts, top_k, vocabulary : int
        Sizes of the layer; ``key_value_width`` is the width of a key, all heads together.
    item_bytes : int
        Bytes of one element.
    """
    tokens = limits.max_num_batched_tokens
    cached = -(-max(limits.max_model_len, tokens) // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
    # residual, norm output, attention output; queries; keys and values; router logits
    per_token = 3 * hidden + hidden + 2 * key_value_width + experts
    per_row = max(intermediate, hidden) + max(2 * intermediate, hidden)
    return Runtime(
        kv_cache=cached * 2 * key_value_width * item_bytes,
        activations=tokens * per_token * item_bytes + limits.max_num_seqs * vocabulary * 2 * LOGIT_BYTES,
        workspace=tokens * top_k * per_row * item_bytes,
    )
