"""Memory on a GPU of one served layer, by the degree of expert parallelism; weights counted from the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.probe_model.checkpoint import EMBEDDING, LAYER, LM_HEAD, Checkpoint, CheckpointConfig, read_checkpoint
from app.probe_model.errors import ProbeModelError
from app.probe_model.geometry import ITEM_BYTES
from app.probe_model.manifest import MANIFEST_FILE, load_manifest
from app.probe_model.runtime import Limits, Runtime, estimate_runtime

_EXPERT = f"{LAYER}mlp.experts."
MAX_DEGREES = 64


@dataclass(frozen=True, slots=True)
class Replicated:
    """Bytes of the weights that every GPU holds: embedding and output projection, attention, all the rest."""

    vocabulary: int
    attention: int
    router_and_norms: int

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.vocabulary + self.attention + self.router_and_norms


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes on the fullest GPU at one degree of expert parallelism.

    Parameters
    ----------
    ep : int
        Degree.
    experts : int
        Experts on that GPU; where the degree does not divide them, the first GPUs hold one more.
    replicated, sharded : int
        Weights, counted from the files.
    runtime : int
        Estimated; see `app.probe_model.runtime`.
    """

    ep: int
    experts: int
    replicated: int
    sharded: int
    runtime: int

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.replicated + self.sharded + self.runtime


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory by degree, with the parts that do not depend on it.

    Parameters
    ----------
    replicated : Replicated
        Weights that every GPU holds.
    runtime : Runtime
        The estimate and what it is made of.
    limits : Limits
        What the estimate assumes: the manifest's limits in a probe model folder, else vLLM-like defaults.
    gpus : tuple of GpuMemory
        One a degree.
    """

    replicated: Replicated
    runtime: Runtime
    limits: Limits
    gpus: tuple[GpuMemory, ...]


def memory(folder: Path, degrees: Sequence[int], limits: Limits | None = None) -> MemoryReport:
    """Count what the first layer of a folder takes on one GPU.

    Parameters
    ----------
    folder : Path
        A probe model, or an OLMoE checkpoint, of which the first layer and the vocabulary count. A probe model
        built from it has a vocabulary of its own, smaller by far.
    degrees : sequence of int
        Degrees of expert parallelism, each at most the number of experts.
    limits : Limits, optional
        Of the server.

    Raises
    ------
    ProbeModelError
        A folder that cannot be read, or a degree out of range.
    """
    checkpoint = read_checkpoint(folder)
    experts = checkpoint.config.num_experts
    if not 1 <= len(degrees) <= MAX_DEGREES or not all(1 <= degree <= experts for degree in degrees):
        raise ProbeModelError("ep", f"give 1 to {MAX_DEGREES} degrees of 1 to {experts}, the number of experts")
    limits = limits or _limits_of(folder)
    replicated = _replicated(checkpoint)
    runtime = checkpoint_runtime(checkpoint.config, limits, ITEM_BYTES[checkpoint.dtype])
    expert = sum(entry.nbytes for key, entry in checkpoint.tensors.items() if key.startswith(_EXPERT)) // experts
    return MemoryReport(
        replicated,
        runtime,
        limits,
        tuple(
            GpuMemory(degree, held, replicated.total, held * expert, runtime.total)
            for degree in degrees
            for held in [-(-experts // degree)]
        ),
    )


def _limits_of(folder: Path) -> Limits:
    if not (folder / MANIFEST_FILE).exists():
        return Limits()
    manifest = load_manifest(folder)
    return Limits(manifest.max_num_seqs, manifest.max_num_batched_tokens, manifest.max_model_len)


def _replicated(checkpoint: Checkpoint) -> Replicated:
    parts = {"vocabulary": 0, "attention": 0, "rest": 0}
    for key, entry in checkpoint.tensors.items():
        if key in (EMBEDDING, LM_HEAD):
            parts["vocabulary"] += entry.nbytes
        elif key.startswith(f"{LAYER}self_attn.") and key.endswith("_proj.weight"):
            parts["attention"] += entry.nbytes
        elif not key.startswith(_EXPERT):
            parts["rest"] += entry.nbytes
    return Replicated(*parts.values())


def checkpoint_runtime(config: CheckpointConfig, limits: Limits, item_bytes: int) -> Runtime:
    """The runtime estimate of a checkpoint's shapes, at so many bytes a value; see `estimate_runtime`."""
    return estimate_runtime(
        limits,
        hidden=config.hidden_size,
        key_value_width=config.key_value_width,
        intermediate=config.intermediate_size,
        experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        vocabulary=config.vocab_size,
        item_bytes=item_bytes,
    )
