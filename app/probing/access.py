"""What the prober needs to know of a replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.outbound import Guard, Target

RankChoice = Literal["header", "url", "none"]
RANK_HEADER = "X-data-parallel-rank"


@dataclass(frozen=True, slots=True)
class ProbeEndpoint:
    """One URL and the ranks behind it.

    Parameters
    ----------
    target : Target
        The parsed URL.
    ranks : tuple of int
        Global ranks behind it, ascending.
    rank_choice : {"header", "url", "none"}
        How a request picks one: ``header`` counts from the endpoint's first rank; ``url`` means that the
        endpoint has one rank only.
    rail : str
        Name of the way there; empty: the URL's own.
    """

    target: Target
    ranks: tuple[int, ...]
    rank_choice: RankChoice
    rail: str = ""

    @property
    def label(self) -> str:
        """What it is called as a rail; host names may be longer than names in a record."""
        return (self.rail or self.target.authority)[:200]


@dataclass(frozen=True, slots=True)
class ReplicaAccess:
    """A replica as the prober sees it.

    Parameters
    ----------
    model : str
        Name under which the probe model is served.
    gpu_tokens : sequence of int, shape (n,)
        The token whose experts all sit on GPU r.
    endpoints : sequence of ProbeEndpoint
        Together they hold every rank; several that hold the same one are rails to it.
    guard : Guard
        Allow-list for connecting.
    logprobs : mapping of int to float
        Expected log-probability of a token's echo, from the manifest; may be empty.
    bearer, ca_pem : str or None
        Credentials and trust.
    probe_timeout_s : float
        Deadline of one probe.
    max_num_seqs, max_num_batched_tokens : int or None
        Sequences that a rank runs at once, and tokens that it takes in a step, from the manifest; None: unknown.
    token_bytes : int
        Bytes of a token's hidden state.
    """

    model: str
    gpu_tokens: Sequence[int]
    endpoints: Sequence[ProbeEndpoint]
    guard: Guard
    logprobs: Mapping[int, float] = field(default_factory=dict)
    bearer: str | None = field(default=None, repr=False)
    ca_pem: str | None = field(default=None, repr=False)
    probe_timeout_s: float = 30.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    token_bytes: int = 1

    def endpoint_of(self, rank: int) -> ProbeEndpoint:
        """The first endpoint that holds a rank."""
        return next(e for e in self.endpoints if rank in e.ranks)
