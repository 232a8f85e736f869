"""What a server takes in one step: a probe that is heavier would be cut into several, and measure the cuts."""

from __future__ import annotations

from app.localization.probes import Probe
from app.localization.settings import Settings
from app.probing.access import ReplicaAccess
from app.probing.errors import Failure


def too_heavy(access: ReplicaAccess, probe: Probe, settings: Settings) -> Failure | None:
    """Why a probe must not be sent to a server with such limits; None when it may.

    A rank that gets more sequences than it runs at once runs the rest afterwards, so that there is no window in
    which all decode; one whose prompts do not fit into one step begins to decode later than the others.
    """
    load, sequences, tokens = probe.shape.load, access.max_num_seqs, access.max_num_batched_tokens
    if sequences is not None and load > sequences:
        return Failure(
            "load_too_high",
            f"the probe gives a rank {load} sequences, and the server runs {sequences} at once (max_num_seqs)",
        )
    prefill = load * settings.prompt_tokens
    if tokens is not None and prefill > tokens:
        return Failure(
            "load_too_high",
            f"the probe gives a rank {load} prompts of {settings.prompt_tokens} tokens, and the server takes"
            f" {tokens} tokens a step (max_num_batched_tokens); send fewer prompt_tokens",
        )
    return None
