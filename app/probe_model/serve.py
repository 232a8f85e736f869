"""The vLLM command that serves a probe model beside production (flags of vLLM 0.32)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from app.probe_model.embeds import SERVER_OPTION
from app.probe_model.errors import ProbeModelError
from app.probe_model.geometry import HEAD_SIZE
from app.probe_model.manifest import Manifest, load_manifest

ROUTED_BACKENDS = (
    "deepep_high_throughput",
    "deepep_low_latency",
    "deepep_v2",
    "flashinfer_nvlink_one_sided",
    "flashinfer_nvlink_two_sided",
    "mori_high_throughput",
    "mori_low_latency",
    "nixl_ep",
)
"""Send only routed tokens, so that paths can be told apart; their kernels carry bfloat16."""
ALLGATHER_BACKEND = "allgather_reducescatter"

RANK_ORDER_NOTE = (
    "Rank r must run on the GPU that is expert-parallel rank r in production: same node order, same"
    " CUDA_VISIBLE_DEVICES order, same all-to-all backend. Otherwise verdicts name the wrong GPU."
)
PROMPT_EMBEDS_NOTE = (
    "It takes prompt_embeds, and so loads tensors that clients made (CVE-2025-62164): private network and trusted"
    " users only."
)
ALLGATHER_NOTE = "This backend sends everything to everyone: only GPUs can be localized, no paths."


def serve_command(
    folder: Path,
    *,
    all2all: str = ALLGATHER_BACKEND,
    host: str = "127.0.0.1",
    port: int = 8000,
    gpu_memory_utilization: float = 0.05,
    kv_cache_memory_bytes: int | None = None,
    tensor_parallel: int = 1,
    enforce_eager: bool = False,
    prompt_embeds: bool = False,
    program: Sequence[str] = ("vllm", "serve"),
    extra: Sequence[str] = (),
) -> list[str]:
    """Make the argument vector that serves a probe model.

    Every GPU is an expert-parallel rank: ``gpus / tensor_parallel`` data-parallel ranks of that many GPUs. EPLB
    is off, since it moves experts; so is the prefix cache, since repeated prompts must cost the same.

    Parameters
    ----------
    folder : Path
        A probe model folder.
    all2all : str
        vLLM's ``--all2all-backend``; must be production's.
    host, port : str, int
        Where to listen.
    gpu_memory_utilization : float
        Part of a GPU's memory that the server may use, above 0 and at most 1.
    kv_cache_memory_bytes : int, optional
        Fixed size of the key/value cache instead of what that fraction leaves.
    tensor_parallel : int
        Divides the number of GPUs; 1 lets a probe choose its sender.
    enforce_eager : bool
        No CUDA graphs and no compilation.
    prompt_embeds : bool
        Let clients send embeddings (see `app.probe_model.embeds`); only on a private address.
    program : sequence of str
        What is run; a module entry point takes the folder as ``--model``.
    extra : sequence of str
        Appended as it is, for example the multi-node data-parallel flags.

    Raises
    ------
    ProbeModelError
        A value out of range, or a backend that cannot carry the model or defeats probing.
    """
    manifest = load_manifest(folder)
    _check_backend(all2all, manifest)
    if prompt_embeds:
        _check_private(host)
    _check_numbers(manifest, port, gpu_memory_utilization, kv_cache_memory_bytes, tensor_parallel)
    model = [str(folder)] if list(program[-1:]) == ["serve"] else ["--model", str(folder)]
    return [
        *program,
        *model,
        *("--served-model-name", manifest.model),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", manifest.dtype),
        *("--tensor-parallel-size", str(tensor_parallel)),
        *("--data-parallel-size", str(manifest.gpus // tensor_parallel)),
        "--enable-expert-parallel",
        *("--expert-placement-strategy", manifest.placement),
        *("--all2all-backend", all2all),
        "--no-enable-eplb",
        "--no-enable-prefix-caching",
        *("--gpu-memory-utilization", f"{gpu_memory_utilization:g}"),
        *(("--kv-cache-memory-bytes", str(kv_cache_memory_bytes)) if kv_cache_memory_bytes else ()),
        *("--max-num-seqs", str(manifest.max_num_seqs)),
        *("--max-num-batched-tokens", str(manifest.max_num_batched_tokens)),
        *("--max-model-len", str(manifest.max_model_len)),
        *(("--enforce-eager",) if enforce_eager else ()),
        *((SERVER_OPTION,) if prompt_embeds else ()),
        *extra,
    ]


def render_serve_command(command: Sequence[str]) -> str:
    """The command for a shell, after comment lines that say what must agree with production."""
    notes = [RANK_ORDER_NOTE]
    if ALLGATHER_BACKEND in command:
        notes.append(ALLGATHER_NOTE)
    if SERVER_OPTION in command:
        notes.append(PROMPT_EMBEDS_NOTE)
    return "\n".join([*(f"# {note}" for note in notes), shlex.join(command)])


def _check_backend(all2all: str, manifest: Manifest) -> None:
    if all2all == ALLGATHER_BACKEND:
        return
    if all2all not in ROUTED_BACKENDS:
        raise ProbeModelError(
            "all2all",
            f"must be {ALLGATHER_BACKEND} or one of {', '.join(ROUTED_BACKENDS)}"
            " (moonep moves load between GPUs, which defeats probing)",
        )
    if manifest.dtype != "bfloat16":
        raise ProbeModelError(
            "all2all", f"{all2all} carries bfloat16, the model is {manifest.dtype}; build it with dtype bfloat16"
        )


def _check_private(host: str) -> None:
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if host != "localhost" and (address is None or not address.is_private or address.is_unspecified):
        raise ProbeModelError("host", "with prompt_embeds it must be localhost or a private address, and no name")


def _check_numbers(
    manifest: Manifest, port: int, utilization: float, kv_cache: int | None, tensor_parallel: int
) -> None:
    if not 1 <= port <= 65535:
        raise ProbeModelError("port", "must be 1 to 65535")
    if not (math.isfinite(utilization) and 0 < utilization <= 1):
        raise ProbeModelError("gpu_memory_utilization", "must be above 0 and at most 1")
    if kv_cache is not None and not 2**20 <= kv_cache <= 2**50:
        raise ProbeModelError("kv_cache_memory_bytes", "must be 1 MiB to 1 PiB")
    if tensor_parallel < 1 or manifest.gpus % tensor_parallel:
        raise ProbeModelError("tensor_parallel", f"must divide the number of GPUs, {manifest.gpus}")
    source = manifest.source
    heads = source.attention_heads if source else manifest.hidden_size // HEAD_SIZE
    if heads % tensor_parallel:
        raise ProbeModelError("tensor_parallel", f"must divide the number of attention heads, {heads}")
    keys = source.key_value_heads if source else heads
    if keys % tensor_parallel and tensor_parallel % keys:
        raise ProbeModelError(
            "tensor_parallel", f"must divide the number of key/value heads, {keys}, or be a multiple of it"
        )
