"""The manifest: what a prober must know about a served probe model.

It travels inside the replica document, so it is untrusted: every size is capped, nothing in it is a path,
and error messages never repeat its content.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError, model_validator

from app.probe_model.errors import ProbeModelError
from app.probe_model.vocabulary import (
    MAX_EXPERTS_PER_GPU,
    MAX_GPUS,
    MAX_TOP_K,
    MIN_GPUS,
    ExpertSet,
)

MANIFEST_FILE = "probe_manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_PATTERN_TOKENS = 100_000
MAX_LOGPROB_TOKENS = 8192
MAX_LOGPROBS = 20

_SET_KEY = re.compile(r"(?:0|[1-9][0-9]{0,5})(?:,(?:0|[1-9][0-9]{0,5}))*")
_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,6}")

DType = Literal["float32", "bfloat16", "float16"]
TokenId = Annotated[StrictInt, Field(ge=0, lt=2**20)]
Size = Annotated[StrictInt, Field(ge=0, le=2**50)]
Logprob = Annotated[StrictFloat, Field(le=0.0, allow_inf_nan=False)]

_CONFIG = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


class BytesPerGpu(BaseModel):
    """Memory of the probe model on one GPU, in bytes.

    ``replicated``: weights that every GPU holds; ``sharded``: the experts of one GPU; ``runtime``: estimated
    need of a full step beside them (`app.probe_model.runtime`).
    """

    model_config = _CONFIG

    replicated: Size
    sharded: Size
    runtime: Size


class TokenLogprob(BaseModel):
    """One entry of an expected distribution: a next-token id and its log-probability (natural log)."""

    model_config = _CONFIG

    token: TokenId
    logprob: Logprob


class Source(BaseModel):
    """The checkpoint whose first layer was taken: numbers only, no name and no path.

    ``layers`` and ``top_k`` are the checkpoint's own; the probe model has one layer and may choose fewer experts.
    """

    model_config = _CONFIG

    architecture: Literal["OlmoeForCausalLM"] = "OlmoeForCausalLM"
    layers: Annotated[StrictInt, Field(ge=1, le=1024)]
    top_k: Annotated[StrictInt, Field(ge=1, le=MAX_TOP_K)]
    attention_heads: Annotated[StrictInt, Field(ge=1, le=1024)]
    key_value_heads: Annotated[StrictInt, Field(ge=1, le=1024)]


class Manifest(BaseModel):
    """Describes one probe model (DESIGN section 8).

    ``gpu_tokens[r]`` is the token all of whose experts are on rank r; ``pattern_tokens`` maps ``"1,3,5,6"``
    (ascending experts) to a token id; ``logprobs`` maps a token id, as text, to the most likely next tokens
    after it, best first. Expert e is on GPU ``e // experts_per_gpu`` (vLLM's linear placement). ``source`` is
    null unless the layer was taken from a checkpoint; documents from before it existed lack it.
    """

    model_config = _CONFIG

    schema_version: Literal[1] = 1
    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
    gpus: Annotated[StrictInt, Field(ge=MIN_GPUS, le=MAX_GPUS)]
    experts: Annotated[StrictInt, Field(ge=2, le=2**16)]
    experts_per_gpu: Annotated[StrictInt, Field(ge=1, le=MAX_EXPERTS_PER_GPU)]
    top_k: Annotated[StrictInt, Field(ge=1, le=MAX_TOP_K)]
    hidden_size: Annotated[StrictInt, Field(ge=2, le=2**16)]
    dtype: DType
    placement: Literal["linear"] = "linear"
    gpu_tokens: Annotated[tuple[TokenId, ...], Field(min_length=MIN_GPUS, max_length=MAX_GPUS)]
    pattern_tokens: Annotated[
        dict[Annotated[str, Field(max_length=448)], TokenId], Field(max_length=MAX_PATTERN_TOKENS)
    ] = {}
    logprobs: Annotated[
        dict[
            Annotated[str, Field(max_length=7)],
            Annotated[tuple[TokenLogprob, ...], Field(min_length=1, max_length=MAX_LOGPROBS)],
        ],
        Field(max_length=MAX_LOGPROB_TOKENS),
    ] = {}
    max_num_seqs: Annotated[StrictInt, Field(ge=1, le=2**16)]
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=2**20)]
    max_model_len: Annotated[StrictInt, Field(ge=2, le=2**20)]
    bytes_per_gpu: BytesPerGpu
    source: Source | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.experts != self.gpus * self.experts_per_gpu:
            raise ValueError(f"experts must be gpus * experts_per_gpu = {self.gpus * self.experts_per_gpu}")
        if self.experts_per_gpu < self.top_k:
            raise ValueError("experts_per_gpu must be at least top_k, or a GPU cannot have a token of its own")
        if self.hidden_size < self.experts:
            raise ValueError(f"hidden_size must be at least experts = {self.experts}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if len(self.gpu_tokens) != self.gpus:
            raise ValueError(f"gpu_tokens must hold one id per rank: {self.gpus}, not {len(self.gpu_tokens)}")
        if len(set(self.gpu_tokens)) != self.gpus:
            raise ValueError("gpu_tokens must be distinct")
        self._check_source()
        self._check_patterns()
        self._check_logprobs()
        return self

    def _check_source(self) -> None:
        if self.source is None:
            return
        if self.top_k > self.source.top_k:
            raise ValueError("top_k must be at most source.top_k")
        if self.hidden_size % self.source.attention_heads:
            raise ValueError("source.attention_heads must divide hidden_size")
        if self.source.attention_heads % self.source.key_value_heads:
            raise ValueError("source.key_value_heads must divide source.attention_heads")

    def _check_patterns(self) -> None:
        ranks = {token: rank for rank, token in enumerate(self.gpu_tokens)}
        for number, (key, token) in enumerate(self.pattern_tokens.items()):
            experts = _parse_set(key)
            where = f"pattern_tokens entry {number}"
            if experts is None or len(experts) != self.top_k or list(experts) != sorted(set(experts)):
                raise ValueError(f"{where}: the key must be {self.top_k} ascending experts such as '1,3'")
            if experts[-1] >= self.experts:
                raise ValueError(f"{where}: experts go from 0 to {self.experts - 1}")
            rank = ranks.get(token)
            if rank is not None and any(e // self.experts_per_gpu != rank for e in experts):
                raise ValueError(f"{where}: token {token} is GPU {rank}'s, but not all its experts are there")
        if len(set(self.pattern_tokens.values())) != len(self.pattern_tokens):
            raise ValueError("pattern_tokens must be distinct")

    def _check_logprobs(self) -> None:
        known = {*self.gpu_tokens, *self.pattern_tokens.values()}
        for number, (key, entries) in enumerate(self.logprobs.items()):
            where = f"logprobs entry {number}"
            if not _TOKEN_KEY.fullmatch(key) or int(key) not in known:
                raise ValueError(f"{where}: the key must be the id of a GPU token or a pattern token")
            if len({entry.token for entry in entries}) != len(entries):
                raise ValueError(f"{where}: next tokens must be distinct")

    def gpu_of(self, expert: int) -> int:
        """The rank that holds ``expert`` under linear placement."""
        return expert // self.experts_per_gpu

    def experts_of(self, token: int) -> ExpertSet:
        """The ascending experts that ``token`` activates.

        A GPU token without a pattern entry, and any special or padding id, follows the builder's layout: the
        first ``top_k`` experts of its GPU, of GPU 0 for the latter.
        """
        known = self._experts_by_token.get(token)
        return tuple(range(self.top_k)) if known is None else known

    def receivers(self, token: int) -> tuple[int, ...]:
        """The ascending ranks that hold the experts of ``token``, each once."""
        return tuple(sorted({self.gpu_of(expert) for expert in self.experts_of(token)}))

    def expected_logprobs(self, token: int) -> dict[int, float]:
        """Expected next-token log-probabilities after ``token``; empty when the manifest has none for it."""
        return {entry.token: entry.logprob for entry in self.logprobs.get(str(token), ())}

    @property
    def logprob_tolerance(self) -> float:
        """How far a right engine's log-probabilities may be from the expected ones (measured on a CPU).

        Float32 engines differ by 1e-5, half-precision ones by up to 0.04; one missing expert of eight moves one
        of the values by 0.09, a wrong set of experts by 0.26 and more.
        """
        return 0.001 if self.dtype == "float32" else 0.05

    @cached_property
    def _experts_by_token(self) -> dict[int, ExpertSet]:
        firsts = range(0, self.experts, self.experts_per_gpu)
        own = {
            token: tuple(range(first, first + self.top_k))
            for token, first in zip(self.gpu_tokens, firsts, strict=True)
        }
        for key, token in self.pattern_tokens.items():
            own[token] = tuple(map(int, key.split(",")))
        return own

    def dump(self, path: Path) -> None:
        """Write the manifest as JSON; equal manifests give equal bytes."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_manifest(path: Path) -> Manifest:
    """Read a manifest file, or the manifest of a probe model folder.

    Raises
    ------
    ProbeModelError
        The file is missing, too large, not JSON, or not a valid manifest; the first fault is named.
    """
    file = path / MANIFEST_FILE if path.is_dir() else path
    if file.exists() and not file.is_file():
        raise ProbeModelError(str(file), "is not a regular file")
    try:
        with file.open("rb") as handle:
            content = handle.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise ProbeModelError(str(file), f"cannot be read ({error.strerror})") from error
    if len(content) > MAX_MANIFEST_BYTES:
        raise ProbeModelError(str(file), f"is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"][:2]))[:80]
        raise ProbeModelError(f"{file}{': ' + where if where else ''}", first["msg"]) from error


def set_key(experts: ExpertSet) -> str:
    """The key of an expert set in ``pattern_tokens``."""
    return ",".join(map(str, sorted(experts)))


def _parse_set(key: str) -> ExpertSet | None:
    return tuple(map(int, key.split(","))) if _SET_KEY.fullmatch(key) else None
