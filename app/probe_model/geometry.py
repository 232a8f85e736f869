"""Shapes and memory of a probe model: pure arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import BytesPerGpu, DType, Manifest, Source, TokenLogprob, set_key
from app.probe_model.runtime import Limits, estimate_runtime
from app.probe_model.vocabulary import Vocabulary, lay_out

ITEM_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
HEAD_SIZE = 64
SIZE_MULTIPLE = 128
"""Quantisation block of the routed backends (DeepEP, NIXL, MoonEP); 2048 and more needs no padding there."""
MAX_HIDDEN = 8192  # the largest size that vLLM's DeepEP and NIXL low-latency kernels take
MAX_INTERMEDIATE = 2**16


@dataclass(frozen=True, slots=True)
class Geometry:
    """What is built: GPUs, experts, layer sizes and the limits of the server.

    Parameters
    ----------
    gpus, experts_per_gpu, top_k : int
        See `app.probe_model.vocabulary.lay_out`.
    hidden, intermediate : int
        Layer sizes, multiples of 128; ``hidden`` is at least the number of experts.
    dtype : {"float32", "bfloat16", "float16"}
        Of the stored weights.
    max_num_seqs, max_num_batched_tokens, max_model_len : int
        Limits that the server is started with and the planner stays within.
    source : Source, optional
        The checkpoint that the layer is taken from; it decides the attention heads.

    Raises
    ------
    ProbeModelError
        A combination that cannot be built or served; the argument is named.
    """

    gpus: int
    experts_per_gpu: int
    top_k: int
    hidden: int
    intermediate: int = 256
    dtype: DType = "float32"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    max_model_len: int = 4096
    source: Source | None = None

    def __post_init__(self) -> None:
        _check_size("hidden", self.hidden, MAX_HIDDEN)
        _check_size("intermediate", self.intermediate, MAX_INTERMEDIATE)
        if self.hidden < self.experts:
            raise ProbeModelError("hidden", f"{self.hidden} is below the number of experts, {self.experts}")
        if self.dtype not in ITEM_BYTES:
            raise ProbeModelError("dtype", f"must be one of {', '.join(ITEM_BYTES)}")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens <= 2**20:
            raise ProbeModelError("max_num_seqs", "must be 1 to max_num_batched_tokens, which is at most 1048576")
        if not 2 <= self.max_model_len <= 2**20:
            raise ProbeModelError("max_model_len", "must be 2 to 1048576")

    @property
    def experts(self) -> int:
        """Experts in all."""
        return self.gpus * self.experts_per_gpu

    @property
    def attention_heads(self) -> int:
        """Heads of queries."""
        return self.source.attention_heads if self.source else self.hidden // HEAD_SIZE

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and of values."""
        return self.source.key_value_heads if self.source else self.attention_heads

    @property
    def key_value_width(self) -> int:
        """Columns of a key, all its heads together."""
        return self.hidden // self.attention_heads * self.key_value_heads

    def vocabulary(self) -> Vocabulary:
        """The token layout."""
        return lay_out(self.gpus, self.experts_per_gpu, self.top_k)

    def bytes_per_gpu(self, vocabulary_size: int) -> BytesPerGpu:
        """Memory on one GPU when attention is data-parallel and the experts are spread."""
        item, hidden, keys = ITEM_BYTES[self.dtype], self.hidden, self.key_value_width
        # embeddings and lm_head; q and o, k and v; the router; two norms in the layer, q norm, final norm; k norm
        attention = 2 * hidden**2 + 2 * keys * hidden
        replicated = 2 * vocabulary_size * hidden + attention + self.experts * hidden + 4 * hidden + keys
        runtime = estimate_runtime(
            Limits(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len),
            hidden=hidden,
            key_value_width=keys,
            intermediate=self.intermediate,
            experts=self.experts,
            top_k=self.top_k,
            vocabulary=vocabulary_size,
            item_bytes=item,
        )
        return BytesPerGpu(
            replicated=replicated * item,
            sharded=self.experts_per_gpu * 3 * hidden * self.intermediate * item,
            runtime=runtime.total,
        )

    def manifest(
        self, model: str, vocabulary: Vocabulary, logprobs: dict[int, list[tuple[int, float]]]
    ) -> Manifest:
        """The manifest of a model of this geometry.

        Raises
        ------
        ProbeModelError
            The name, or another value, does not belong in a manifest.
        """
        try:
            return Manifest(
                model=model,
                gpus=self.gpus,
                experts=self.experts,
                experts_per_gpu=self.experts_per_gpu,
                top_k=self.top_k,
                hidden_size=self.hidden,
                dtype=self.dtype,
                gpu_tokens=vocabulary.gpu_tokens,
                pattern_tokens={set_key(chosen): token for chosen, token in vocabulary.pattern_tokens.items()},
                logprobs={
                    str(token): tuple(TokenLogprob(token=after, logprob=value) for after, value in entries)
                    for token, entries in logprobs.items()
                },
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                bytes_per_gpu=self.bytes_per_gpu(vocabulary.size),
                source=self.source,
            )
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise ProbeModelError(".".join(map(str, first["loc"])), first["msg"]) from error


def _check_size(field: str, value: int, high: int) -> None:
    if not SIZE_MULTIPLE <= value <= high or value % SIZE_MULTIPLE:
        raise ProbeModelError(
            field,
            f"{value} must be a multiple of {SIZE_MULTIPLE} up to {high}, as the routed backends require",
        )
