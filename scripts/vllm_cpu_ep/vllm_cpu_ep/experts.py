"""The expert kernel with an expert map: each rank computes its own experts' rows, and logs them if asked.

With ``VLLM_CPU_EP_LOG=PREFIX`` every step in which a rank computes anything appends a JSON line to
``PREFIX.<rank>.jsonl``: ``{"rank": 1, "rows": {"4": 3, "5": 3}}``, rows by global expert id. At most
`MAX_LOG_LINES` lines a process.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from vllm_cpu_ep.faults import fault_file

LOG_VARIABLE = "VLLM_CPU_EP_LOG"
MAX_LOG_LINES = 200_000

_lines = itertools.count()


def install() -> None:
    """Make `CPUUnquantizedExperts.apply` honour its expert map; without one it runs as before."""
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    stock = cpu_moe.CPUUnquantizedExperts.apply
    if getattr(stock, "honours_expert_map", False):
        return

    def apply(self: Any, **call: Any) -> None:
        if call["expert_map"] is None:
            stock(self, **call)
        else:
            _apply_local(self, cpu_moe.cpu_fused_moe, call)

    apply.honours_expert_map = True  # type: ignore[attr-defined]
    cpu_moe.CPUUnquantizedExperts.apply = apply


def _apply_local(experts: Any, kernel: Callable[..., None], call: Mapping[str, Any]) -> None:
    """Compute the (token, local expert) pairs as rows with one expert each, then add them up by token."""
    ids, expert_map, output = call["topk_ids"], call["expert_map"], call["output"]
    output.zero_()
    # -1 marks experts of other ranks, and rows that the sparse all-to-all did not send here.
    local = torch.where(ids >= 0, expert_map[ids.clamp(min=0).long()], -1)
    token, slot = (local >= 0).nonzero(as_tuple=True)
    if token.numel() == 0:
        return
    _observe(experts.moe_config.moe_parallel_config.ep_rank, ids[token, slot])
    rows = call["hidden_states"][token].contiguous()
    computed = torch.empty_like(rows)
    kernel(
        computed,
        rows,
        call["w1"],
        call["w2"],
        experts.w1_bias,
        experts.w2_bias,
        call["topk_weights"][token, slot].float().view(-1, 1).contiguous(),
        local[token, slot].to(torch.int32).view(-1, 1).contiguous(),
        call["activation"].value,
        experts.isa,
        call["apply_router_weight_on_input"],
    )
    output.index_add_(0, token, computed)


def _observe(rank: int, ids: torch.Tensor) -> None:
    """Apply the rank's fault, and log the step's rows."""
    time.sleep(fault_file().current().gpu_seconds(rank, ids.numel()))
    prefix = os.environ.get(LOG_VARIABLE)
    if prefix and next(_lines) < MAX_LOG_LINES:
        experts, rows = ids.unique(return_counts=True)
        line = {"rank": rank, "rows": dict(zip(map(str, experts.tolist()), rows.tolist(), strict=True))}
        with Path(f"{prefix}.{rank}.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
