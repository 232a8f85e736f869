"""What a replica lets a probe do, and which strategy that allows (DESIGN section 5, last table)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sends = Literal["serial", "shared"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Declared by the replica's layout, or measured.

    Parameters
    ----------
    gpus : bool
        A token can be sent to one GPU alone, so a slow GPU can be named.
    paths : bool
        The all-to-all sends a token only to where its experts are, so paths can be told apart.
    any_size : bool
        Probes of any number of GPUs can be formed; else exactly k.
    own_prompt_per_rank : bool
        Ranks can be given different destinations in the same step.
    rank_choice : bool
        The sending rank of a request can be chosen.
    transport : {"serial", "shared"} or None
        How a rank's sends share its link; None: not known.
    max_num_seqs, max_num_batched_tokens : int or None
        Sequences a rank runs at once, and tokens it takes in a step; None: no limit known.
    """

    gpus: bool = True
    paths: bool = True
    any_size: bool = True
    own_prompt_per_rank: bool = True
    rank_choice: bool = True
    transport: Sends | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    @property
    def any_shape(self) -> bool:
        """Whether a probe can be any directed graph: what r-regular probes need."""
        return self.any_size and self.own_prompt_per_rank and self.rank_choice

    def most_sequences(self, prompt_tokens: int) -> int | None:
        """Sequences that a rank may be given in one probe, with prompts of that length; None: no limit known."""
        limits = [] if self.max_num_seqs is None else [self.max_num_seqs]
        if self.max_num_batched_tokens is not None:
            limits.append(self.max_num_batched_tokens // prompt_tokens)
        return min(limits, default=None)
