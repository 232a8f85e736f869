"""The vLLM command line, as text; that vLLM itself accepts it is checked in test_vllm.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import MANIFEST_FILE, Source
from app.probe_model.serve import ALLGATHER_NOTE, RANK_ORDER_NOTE, render_serve_command, serve_command
from app.probe_model.synthetic import synthetic_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a bfloat16 manifest for 8 GPUs."""
    synthetic_manifest(8, dtype="bfloat16").dump(tmp_path / MANIFEST_FILE)
    return tmp_path


def test_the_whole_command(folder: Path) -> None:
    assert serve_command(folder, all2all="deepep_low_latency", enforce_eager=True) == [
        "vllm", "serve", str(folder), "--served-model-name", "probe", "--host", "127.0.0.1", "--port", "8000",
        "--dtype", "bfloat16", "--tensor-parallel-size", "1", "--data-parallel-size", "8",
        "--enable-expert-parallel", "--expert-placement-strategy", "linear",
        "--all2all-backend", "deepep_low_latency", "--no-enable-eplb", "--no-enable-prefix-caching",
        "--gpu-memory-utilization", "0.05", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192",
        "--max-model-len", "4096", "--enforce-eager",
    ]  # fmt: skip


def test_options(folder: Path) -> None:
    command = serve_command(
        folder,
        tensor_parallel=2,
        kv_cache_memory_bytes=2**26,
        program=("python", "-m", "x"),
        extra=("--headless",),
    )

    assert command[:5] == ["python", "-m", "x", "--model", str(folder)]
    assert command[command.index("--data-parallel-size") + 1] == "4"
    assert command[command.index("--kv-cache-memory-bytes") + 1] == "67108864"
    assert command[-1] == "--headless"
    assert "--enforce-eager" not in command


def test_rendering_says_what_must_agree_with_production(tmp_path: Path) -> None:
    spaced = tmp_path / "my model"
    spaced.mkdir()
    synthetic_manifest(4, dtype="bfloat16").dump(spaced / MANIFEST_FILE)

    *notes, line = render_serve_command(serve_command(spaced)).splitlines()
    assert notes == [f"# {RANK_ORDER_NOTE}", f"# {ALLGATHER_NOTE}"]
    assert shlex.split(line) == serve_command(spaced)
    routed = render_serve_command(serve_command(spaced, all2all="nixl_ep"))
    assert routed.startswith(f"# {RANK_ORDER_NOTE}\nvllm serve")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"all2all": "moonep"}, "all2all"),
        ({"all2all": "x; rm -rf ~"}, "all2all"),
        ({"port": 0}, "port"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"kv_cache_memory_bytes": 1000}, "kv_cache_memory_bytes"),
        ({"tensor_parallel": 3}, "tensor_parallel"),
        ({"tensor_parallel": 4}, "tensor_parallel"),  # divides 8 GPUs, but not the 2 attention heads
    ],
)
def test_bad_options_are_named(folder: Path, arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ProbeModelError) as caught:
        serve_command(folder, **arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_tensor_parallel_divides_the_heads_of_the_checkpoint(tmp_path: Path) -> None:
    # 2048 columns would be 32 heads of the builder's own; the checkpoint has 4 of queries and 2 of keys.
    manifest = synthetic_manifest(16, hidden=2048)
    source = Source(layers=2, top_k=2, attention_heads=4, key_value_heads=2)
    manifest.model_copy(update={"source": source}).dump(tmp_path / MANIFEST_FILE)
    assert "--tensor-parallel-size" in serve_command(tmp_path, tensor_parallel=4)
    with pytest.raises(ProbeModelError, match="tensor_parallel: must divide the number of attention heads, 4"):
        serve_command(tmp_path, tensor_parallel=8)
    three = source.model_copy(update={"attention_heads": 16, "key_value_heads": 1})
    manifest.model_copy(update={"source": three}).dump(tmp_path / MANIFEST_FILE)
    assert serve_command(tmp_path, tensor_parallel=16)


def test_a_routed_backend_needs_bfloat16(tmp_path: Path) -> None:
    synthetic_manifest(4).dump(tmp_path / MANIFEST_FILE)
    with pytest.raises(ProbeModelError, match="build it with dtype bfloat16"):
        serve_command(tmp_path, all2all="deepep_low_latency")
