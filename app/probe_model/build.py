"""Build a probe model folder: weights, config, tokenizer and manifest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.probe_model.checkpoint import Checkpoint, CheckpointConfig, read_checkpoint
from app.probe_model.errors import ProbeModelError
from app.probe_model.files import MODEL_FILES, WEIGHTS_FILE, write_text_files
from app.probe_model.geometry import Geometry
from app.probe_model.manifest import MANIFEST_FILE, DType, Manifest, Source
from app.probe_model.vocabulary import Vocabulary
from app.probe_model.weights import make_weights

if TYPE_CHECKING:
    import torch

MAX_MODEL_BYTES = 16 * 2**30
"""The whole model is made in memory, so its size is bounded."""


def build(
    gpus: int,
    experts_per_gpu: int,
    top_k: int,
    hidden: int,
    out: Path,
    *,
    intermediate: int = 256,
    dtype: DType = "float32",
    seed: int = 0,
    model: str = "probe",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 4096,
) -> Manifest:
    """Write a probe model folder that vLLM and transformers load; equal arguments give equal bytes.

    Parameters
    ----------
    gpus, experts_per_gpu, top_k : int
        GPUs, experts on each, experts a token activates (at most ``experts_per_gpu``).
    hidden, intermediate : int
        Layer sizes, multiples of 128; ``hidden`` is at least the number of experts. vLLM pads a hidden size
        below 2048 for the low-latency backends.
    out : Path
        New or empty folder, or an older probe model, which is replaced.
    dtype : {"float32", "bfloat16", "float16"}
        Of the weights. The routed GPU backends carry bfloat16 only.
    seed : int
        Seed of the attention and expert weights.
    model : str
        Name the model is served under.
    max_num_seqs, max_num_batched_tokens, max_model_len : int
        Limits the server is started with; ``max_num_seqs`` is by default 64 or ``gpus``, whichever is larger.

    Returns
    -------
    Manifest
        Also written into the folder.

    Raises
    ------
    ProbeModelError
        A bad combination (the argument is named), or ``out`` holds something else than a probe model.
    """
    geometry = Geometry(
        gpus,
        experts_per_gpu,
        top_k,
        hidden,
        intermediate,
        dtype,
        max(64, gpus) if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
    )
    vocabulary = geometry.vocabulary()
    _check_size(geometry, vocabulary.size)
    if not 0 <= seed < 2**63:
        raise ProbeModelError("seed", "must be 0 to 2**63 - 1")
    _check_replaceable(out)
    return _make(out, geometry, vocabulary, model, lambda: make_weights(geometry, vocabulary, seed))


def build_from(
    checkpoint: Path,
    gpus: int,
    out: Path,
    *,
    top_k: int | None = None,
    dtype: DType | None = None,
    model: str = "probe",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 4096,
) -> Manifest:
    """Write a probe model folder around the first layer of an OLMoE checkpoint; its experts stay as they are.

    Parameters
    ----------
    checkpoint : Path
        Folder with ``config.json`` and safetensors; nothing else in it is read, and nothing in it is run.
    gpus : int
        Divides the number of experts; expert e goes to GPU ``e // (experts / gpus)``.
    out : Path
        See `build`.
    top_k : int, optional
        Experts a token activates, at most the checkpoint's, and at most the experts of one GPU.
    dtype : {"float32", "bfloat16", "float16"}, optional
        Converts the weights; by default they stay as they are.
    model, max_num_seqs, max_num_batched_tokens, max_model_len
        See `build`.

    Returns
    -------
    Manifest
        Also written into the folder.

    Raises
    ------
    ProbeModelError
        A checkpoint that cannot be used (file and key are named), or a bad combination (the argument is named).
    """
    from app.probe_model.adopt import adopt_weights

    _check_replaceable(out)
    found = read_checkpoint(checkpoint)
    config = found.config
    geometry = Geometry(
        gpus,
        _experts_per_gpu(found, gpus, top_k),
        config.num_experts_per_tok if top_k is None else top_k,
        config.hidden_size,
        config.intermediate_size,
        found.dtype if dtype is None else dtype,
        max(64, gpus) if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        _source(config),
    )
    vocabulary = geometry.vocabulary()
    _check_size(geometry, vocabulary.size)
    return _make(out, geometry, vocabulary, model, lambda: adopt_weights(found, geometry, vocabulary))


def _make(
    out: Path,
    geometry: Geometry,
    vocabulary: Vocabulary,
    model: str,
    weigh: Callable[[], tuple[dict[str, torch.Tensor], dict[int, list[tuple[int, float]]]]],
) -> Manifest:
    """Compute weights and log-probabilities, and write the folder."""
    # Fails on a bad model name before anything is computed or written.
    geometry.manifest(model, vocabulary, {})
    weights, logprobs = weigh()
    manifest = geometry.manifest(model, vocabulary, logprobs)
    _write(out, geometry, vocabulary, weights, manifest)
    return manifest


def _source(config: CheckpointConfig) -> Source:
    return Source(
        layers=config.num_hidden_layers,
        top_k=config.num_experts_per_tok,
        attention_heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
    )


def _experts_per_gpu(checkpoint: Checkpoint, gpus: int, top_k: int | None) -> int:
    """Experts on each GPU; says what to change where they are not equally many or fewer than a token needs."""
    config = checkpoint.config
    if top_k is not None and not 1 <= top_k <= config.num_experts_per_tok:
        raise ProbeModelError("top_k", f"must be 1 to the checkpoint's {config.num_experts_per_tok}")
    if not 2 <= gpus <= config.num_experts or config.num_experts % gpus:
        raise ProbeModelError("gpus", f"must be at least 2 and divide the {config.num_experts} experts")
    held = config.num_experts // gpus
    if held < (top_k or config.num_experts_per_tok):
        raise ProbeModelError("top_k", f"a GPU would hold {held} experts; lower top_k to {held} or less")
    return held


def _check_size(geometry: Geometry, vocabulary_size: int) -> None:
    memory = geometry.bytes_per_gpu(vocabulary_size)
    total = memory.replicated + geometry.gpus * memory.sharded
    if total > MAX_MODEL_BYTES:
        raise ProbeModelError(
            "hidden",
            f"the model would take {total / 2**30:.1f} GiB, more than {MAX_MODEL_BYTES / 2**30:.0f};"
            " take a smaller hidden, intermediate or experts_per_gpu, or dtype bfloat16",
        )


def _check_replaceable(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ProbeModelError("out", f"{out} is not a folder")
    present = {entry.name for entry in out.iterdir()}
    if present and (MANIFEST_FILE not in present or not present <= MODEL_FILES):
        raise ProbeModelError("out", f"{out} is not empty and not a probe model; name another folder")


def _write(
    out: Path,
    geometry: Geometry,
    vocabulary: Vocabulary,
    weights: dict[str, torch.Tensor],
    manifest: Manifest,
) -> None:
    """Write into a folder beside ``out`` and swap it in, so that a failed build leaves the old one whole."""
    from safetensors.torch import save_file

    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        staging.chmod(0o755)
        save_file(weights, staging / WEIGHTS_FILE, metadata={"format": "pt"})
        write_text_files(staging, geometry, vocabulary)
        manifest.dump(staging / MANIFEST_FILE)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
