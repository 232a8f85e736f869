"""A sparse all-to-all: only routed rows travel, from the token's rank to the ranks that hold its experts.

Dispatch sends row numbers, expert ids, router weights and hidden states in one payload a path; combine returns
the partial sums over the same path. Path faults delay both, so a pair of ranks that send to each other sees a
fault twice a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from vllm_cpu_ep.collectives import exchange, others
from vllm_cpu_ep.faults import fault_file


class Rows(NamedTuple):
    """Token rows: hidden states (rows, hidden), router weights (rows, top_k), expert ids (rows, top_k)."""

    hidden: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


@dataclass(frozen=True)
class Step:
    """What `combine` needs to know of its `dispatch`: which rows went where, in which shapes."""

    communicator: Any
    sent: dict[int, torch.Tensor]  # by receiver: local row numbers
    received: dict[int, torch.Tensor]  # by sender: row numbers in the gathered layout
    mine: slice  # this rank's rows in the gathered layout


def expert_owners(experts: int, ranks: int) -> torch.Tensor:
    """The rank of each expert under vLLM's linear placement: the first ranks hold one more if uneven."""
    base, extra = divmod(experts, ranks)
    return torch.tensor([rank for rank in range(ranks) for _ in range(base + (rank < extra))])


def pack(numbers: torch.Tensor, local: Rows) -> torch.Tensor:
    """One float32 payload: row number, expert ids, weights, hidden states. Integers to 2**24 are exact."""
    parts = [numbers.view(-1, 1), local.ids[numbers], local.weights[numbers], local.hidden[numbers]]
    return torch.cat([part.float() for part in parts], dim=1)


def dispatch_rows(communicator: Any, owner: torch.Tensor, sizes: list[int], local: Rows) -> tuple[Rows, Step]:
    """Send routed rows to their experts' ranks.

    Returns the rows in the gathered layout (those of rank 0 first); what was not sent here has expert id -1.
    """
    me, top_k = communicator.rank_in_group, local.ids.shape[1]
    owners = owner[local.ids.long()]
    sent = {peer: (owners == peer).any(dim=1).nonzero().view(-1) for peer in others(communicator)}
    counts = {peer: torch.zeros(1, dtype=torch.int64) for peer in sent}
    exchange(communicator, {peer: torch.tensor([rows.numel()]) for peer, rows in sent.items()}, counts)
    width = 1 + 2 * top_k + local.hidden.shape[1]
    payloads = {peer: torch.empty(int(count), width) for peer, count in counts.items()}
    packed = {peer: pack(rows, local) for peer, rows in sent.items()}
    exchange(communicator, packed, payloads, path_delays(me, sent))
    starts = [sum(sizes[:rank]) for rank in range(len(sizes) + 1)]
    mine = slice(starts[me], starts[me + 1])
    gathered = Rows(
        local.hidden.new_zeros(starts[-1], local.hidden.shape[1]),
        local.weights.new_zeros(starts[-1], top_k),
        local.ids.new_full((starts[-1], top_k), -1),
    )
    for target, source in zip(gathered, local, strict=True):
        target[mine] = source
    received = {
        peer: unpack(payload, starts[peer], gathered) for peer, payload in payloads.items() if len(payload)
    }
    return gathered, Step(communicator, sent, received, mine)


def unpack(payload: torch.Tensor, start: int, gathered: Rows) -> torch.Tensor:
    """Write a payload into the gathered rows; return its row numbers there."""
    top_k = gathered.ids.shape[1]
    rows = payload[:, 0].long() + start
    gathered.ids[rows] = payload[:, 1 : 1 + top_k].to(gathered.ids.dtype)
    gathered.weights[rows] = payload[:, 1 + top_k : 1 + 2 * top_k].to(gathered.weights.dtype)
    gathered.hidden[rows] = payload[:, 1 + 2 * top_k :].to(gathered.hidden.dtype)
    return rows


def combine_rows(step: Step, hidden: torch.Tensor) -> torch.Tensor:
    """Return partial results to the tokens' ranks and add them up there."""
    returned = {peer: hidden.new_empty(rows.numel(), hidden.shape[1]) for peer, rows in step.sent.items()}
    exchange(
        step.communicator,
        {peer: hidden[rows] for peer, rows in step.received.items()},
        returned,
        path_delays(step.communicator.rank_in_group, step.received),
    )
    output = hidden[step.mine].clone()
    for peer, rows in step.sent.items():
        output.index_add_(0, rows, returned[peer])
    return output


def path_delays(sender: int, rows: dict[int, torch.Tensor]) -> dict[int, float]:
    """Seconds by receiver that the faults in force hold this sender's rows back."""
    faults = fault_file().current()
    return {receiver: faults.path_seconds(sender, receiver, sent.numel()) for receiver, sent in rows.items()}


def install() -> None:
    """Replace the dispatch and combine of vLLM's all-gather manager."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed.device_communicators import all2all

    stock = all2all.AgRsAll2AllManager
    if stock.__name__ == "SparseAll2AllManager":
        return

    class SparseAll2AllManager(stock):  # type: ignore[misc,valid-type]
        """Routed rows only; one dispatch is followed by one combine."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            experts = get_current_vllm_config().model_config.get_num_experts()
            self._owner = expert_owners(experts, self.world_size)
            self._step: Step | None = None

        def dispatch(
            self,
            hidden_states: torch.Tensor,
            topk_weights: torch.Tensor,
            topk_ids: torch.Tensor,
            is_sequence_parallel: bool = False,
            extra_tensors: list[torch.Tensor] | None = None,
        ) -> Rows:
            if extra_tensors is not None:
                raise NotImplementedError("the sparse all-to-all carries no extra tensors (quantisation, LoRA)")
            group = self._get_comm_group(is_sequence_parallel)
            sizes = self._get_sizes(hidden_states.shape[0], group)
            local = Rows(hidden_states, topk_weights, topk_ids)
            gathered, self._step = dispatch_rows(group.device_communicator, self._owner, sizes, local)
            return gathered

        def combine(
            self,
            hidden_states: torch.Tensor,
            is_sequence_parallel: bool = False,  # noqa: ARG002 - vLLM's signature
        ) -> torch.Tensor:
            step, self._step = self._step, None
            if step is None:
                raise RuntimeError("combine without a dispatch")
            return combine_rows(step, hidden_states)

    all2all.AgRsAll2AllManager = SparseAll2AllManager
