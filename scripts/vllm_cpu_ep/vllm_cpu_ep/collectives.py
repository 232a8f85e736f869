"""Point-to-point exchange over gloo, and the variable-size collectives that `CpuCommunicator` lacks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

NO_DELAY: Mapping[int, float] = {}


def exchange(
    communicator: Any,
    sends: Mapping[int, torch.Tensor],
    receives: Mapping[int, torch.Tensor],
    delays: Mapping[int, float] = NO_DELAY,
) -> None:
    """Send to and receive from other ranks of the group, and wait for all of it.

    Parameters
    ----------
    communicator : CpuCommunicator
        Gives the process group and the global ranks.
    sends, receives : mapping of int to tensor
        By rank in the group; empty tensors are not transferred, so both sides must know the sizes.
    delays : mapping of int to float
        Seconds to hold a payload back, by receiver. Only that payload: the others leave at once, as on
        hardware where a slow path does not block its neighbours.
    """
    group, ranks = communicator.device_group, communicator.ranks
    start = time.monotonic()
    pending = [dist.irecv(t, src=ranks[peer], group=group) for peer, t in receives.items() if t.numel()]
    for peer in sorted(sends, key=lambda peer: delays.get(peer, 0.0)):
        if sends[peer].numel():
            time.sleep(max(0.0, start + delays.get(peer, 0.0) - time.monotonic()))
            pending.append(dist.isend(sends[peer].contiguous(), dst=ranks[peer], group=group))
    for work in pending:
        work.wait()


def others(communicator: Any) -> list[int]:
    """The other ranks of the group."""
    return [peer for peer in range(communicator.world_size) if peer != communicator.rank_in_group]


def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Concatenate what every rank gives, in rank order; ``sizes`` are the ranks' numbers of rows."""
    if isinstance(input_, list):
        return [all_gatherv(self, tensor, dim, sizes) for tensor in input_]
    if dim != 0:
        raise NotImplementedError("all_gatherv: dim 0 only")
    me = self.rank_in_group
    rows = sizes or [input_.shape[0]] * self.world_size
    parts = [input_ if r == me else input_.new_empty((rows[r], *input_.shape[1:])) for r in range(len(rows))]
    exchange(self, dict.fromkeys(others(self), input_), {peer: parts[peer] for peer in others(self)})
    return torch.cat(parts)


def reduce_scatterv(
    self: Any, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
) -> torch.Tensor:
    """Sum over the ranks, then keep this rank's rows; ``sizes`` are the ranks' numbers of rows."""
    if dim % input_.dim() != 0:
        raise NotImplementedError("reduce_scatterv: dim 0 only")
    rows = sizes or [input_.shape[0] // self.world_size] * self.world_size
    parts = input_.split(rows)
    mine = parts[self.rank_in_group]
    received = {peer: torch.empty_like(mine) for peer in others(self)}
    exchange(self, {peer: parts[peer] for peer in others(self)}, received)
    return torch.stack([mine, *received.values()]).sum(dim=0)


def install() -> None:
    """Give `CpuCommunicator` the two collectives."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv
