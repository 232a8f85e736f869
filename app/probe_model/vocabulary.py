"""Which token id stands for which experts: pure arithmetic that builder, manifest and emulator share.

Ids 0 and 1 are special, then follows one token per GPU, then one token per remaining set of ``top_k``
experts, then padding. Every token that carries no set of its own is embedded like GPU 0's token, so that it
still routes somewhere definite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from app.probe_model.errors import ProbeModelError

EOS_TOKEN = 0
UNKNOWN_TOKEN = 1
FIRST_GPU_TOKEN = 2
VOCABULARY_MULTIPLE = 64  # vLLM pads vocabularies to this; a multiple keeps config and tensors equal

MIN_GPUS, MAX_GPUS = 2, 1024
MAX_EXPERTS_PER_GPU = 256
MAX_TOP_K = 64
MAX_BUILT_PATTERNS = 5000
"""Pattern tokens are all k-subsets of the experts, or none when there are more than this."""

ECHO_MARGIN = 4.0
"""By how much the logit of the same token again exceeds that of the nearest other one, were the experts to
add nothing. Small enough that bfloat16 resolves what they do add."""

TOP_LOGPROBS = 5
"""How many next tokens the manifest keeps a log-probability of, for each checked token."""

ExpertSet = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token layout of one probe model.

    Parameters
    ----------
    gpu_sets : tuple of tuple of int
        Per rank, the ``top_k`` experts of its token; all of them are on that GPU under linear placement.
    gpu_tokens : tuple of int
        Per rank, the token id.
    pattern_tokens : dict of tuple of int to int
        Ascending expert set to token id. Holds every k-subset, a GPU's own set under the GPU's token id;
        empty when there are more than `MAX_BUILT_PATTERNS`.
    size : int
        Rows of the embedding, padding included.
    """

    gpu_sets: tuple[ExpertSet, ...]
    gpu_tokens: tuple[int, ...]
    pattern_tokens: dict[ExpertSet, int]
    size: int

    def experts_by_token(self) -> dict[int, ExpertSet]:
        """Token id to its ascending expert set, for every token that has a set of its own."""
        own = dict(zip(self.gpu_tokens, self.gpu_sets, strict=True))
        own.update({token: experts for experts, token in self.pattern_tokens.items()})
        return own

    @property
    def separation(self) -> int:
        """In how many experts two tokens differ at least."""
        return 1 if self.pattern_tokens else len(self.gpu_sets[0])

    def checked_tokens(self) -> dict[int, ExpertSet]:
        """The few tokens whose log-probabilities the manifest keeps, with their experts.

        Every GPU's token and, where there are pattern tokens, enough of them to reach the experts that no GPU
        token uses, so that together they show a fault in any expert that a probe can reach.
        """
        checked = dict(zip(self.gpu_tokens, self.gpu_sets, strict=True))
        if self.pattern_tokens:
            top_k, last = len(self.gpu_sets[0]), max(chosen[-1] for chosen in self.pattern_tokens)
            used = {expert for chosen in self.gpu_sets for expert in chosen}
            unused = [expert for expert in range(last + 1) if expert not in used]
            for start in range(0, len(unused), top_k):
                group = unused[start : start + top_k]
                fill = [expert for expert in range(last + 1) if expert not in group]
                chosen = tuple(sorted([*group, *fill[: top_k - len(group)]]))
                checked[self.pattern_tokens[chosen]] = chosen
        return checked

    def rows(self) -> Iterator[ExpertSet]:
        """Yield the expert set of every id from 0 to ``size - 1``, special and padding ids included."""
        own = self.experts_by_token()
        default = self.gpu_sets[0]
        return (own.get(token, default) for token in range(self.size))


def lay_out(gpus: int, experts_per_gpu: int, top_k: int) -> Vocabulary:
    """Lay out the tokens.

    Parameters
    ----------
    gpus : int
        Number of GPUs (expert-parallel ranks), 2 to 1024.
    experts_per_gpu : int
        Experts on each GPU, at least `top_k`.
    top_k : int
        Experts that each token activates.

    Raises
    ------
    ProbeModelError
        A value out of range.
    """
    _check("gpus", gpus, MIN_GPUS, MAX_GPUS)
    _check("experts_per_gpu", experts_per_gpu, 1, MAX_EXPERTS_PER_GPU)
    _check("top_k", top_k, 1, MAX_TOP_K)
    if experts_per_gpu < top_k:
        raise ProbeModelError(
            "experts_per_gpu",
            f"{experts_per_gpu} is below top_k {top_k}; a GPU's token needs top_k experts there",
        )
    gpu_sets = tuple(
        tuple(range(first, first + top_k)) for first in range(0, gpus * experts_per_gpu, experts_per_gpu)
    )
    gpu_tokens = tuple(range(FIRST_GPU_TOKEN, FIRST_GPU_TOKEN + gpus))
    patterns = _patterns(gpus * experts_per_gpu, top_k, dict(zip(gpu_sets, gpu_tokens, strict=True)))
    used = max([*gpu_tokens, *patterns.values()]) + 1
    return Vocabulary(gpu_sets, gpu_tokens, patterns, -(-used // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE)


def _patterns(experts: int, top_k: int, gpu_tokens: dict[ExpertSet, int]) -> dict[ExpertSet, int]:
    if math.comb(experts, top_k) > MAX_BUILT_PATTERNS:
        return {}
    patterns: dict[ExpertSet, int] = {}
    free = FIRST_GPU_TOKEN + len(gpu_tokens)
    for chosen in combinations(range(experts), top_k):
        # A second token for a GPU's own set would have the same embedding: greedy decoding could emit either.
        token = gpu_tokens.get(chosen, free)
        patterns[chosen] = token
        free += token == free
    return patterns


def _check(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ProbeModelError(field, f"{value} is out of range; it must be {low} to {high}")
