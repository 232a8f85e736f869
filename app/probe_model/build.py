"""Build a probe model folder: weights, config, tokenizer and manifest."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from app.probe_model.errors import ProbeModelError
from app.probe_model.files import MODEL_FILES, WEIGHTS_FILE, write_text_files
from app.probe_model.geometry import Geometry
from app.probe_model.manifest import MANIFEST_FILE, DType, Manifest
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
    # Fails on a bad model name before anything is computed or written.
    geometry.manifest(model, vocabulary, {})
    weights, logprobs = make_weights(geometry, vocabulary, seed)
    manifest = geometry.manifest(model, vocabulary, logprobs)
    _write(out, geometry, vocabulary, weights, manifest)
    return manifest


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
