"""Memory by degree of expert parallelism: against the files, hand-made sums and the paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.probe_model.errors import ProbeModelError
from app.probe_model.geometry import Geometry
from app.probe_model.manifest import MANIFEST_FILE, Source
from app.probe_model.memory import memory
from app.probe_model.runtime import Limits, estimate_runtime
from app.probe_model.synthetic import synthetic_manifest
from tests.probe_model.checkpoints import write_checkpoint

MB = 10**6
OLMOE_1B_7B = {
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
}


def test_weights_are_the_files_bytes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", shards=3)
    report = memory(folder, [1, 2, 3, 8])
    on_disk = sum(
        file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little")
        for file in folder.glob("*.safetensors")
    )
    alone, half, third, eighth = report.gpus

    assert alone.replicated + alone.sharded == on_disk
    assert {gpu.replicated for gpu in report.gpus} == {report.replicated.total}
    assert alone.sharded == 8 * 3 * 128 * 256 * 2
    assert (half.sharded, eighth.sharded) == (alone.sharded // 2, alone.sharded // 8)
    # Three GPUs hold 3, 3 and 2 of 8 experts; the fullest counts.
    assert (third.experts, third.sharded) == (3, alone.sharded * 3 // 8)
    assert report.replicated.vocabulary == 2 * 300 * 128 * 2
    assert report.replicated.attention == (2 * 128 * 128 + 2 * 64 * 128) * 2
    assert report.replicated.router_and_norms == (8 * 128 + 4 * 128 + 64) * 2
    for gpu in report.gpus:
        assert gpu.total == gpu.replicated + gpu.sharded + gpu.runtime


def test_the_geometry_counts_as_the_files_do(tmp_path: Path) -> None:
    # The builder's arithmetic against the tensors, with fewer keys than queries.
    folder = write_checkpoint(tmp_path / "c", vocab_size=64)
    geometry = Geometry(
        4, 2, 2, 128, 256, "bfloat16", source=Source(layers=2, top_k=4, attention_heads=4, key_value_heads=2)
    )
    expected = geometry.bytes_per_gpu(64)
    (gpu,) = memory(folder, [4]).gpus
    assert (gpu.replicated, gpu.sharded) == (expected.replicated, expected.sharded)


def test_the_runtime_estimate_by_hand() -> None:
    limits = Limits(max_num_seqs=3, max_num_batched_tokens=10, max_model_len=20)
    runtime = estimate_runtime(
        limits,
        hidden=100,
        key_value_width=50,
        intermediate=60,
        experts=8,
        top_k=2,
        vocabulary=1000,
        item_bytes=2,
    )
    assert runtime.kv_cache == 32 * 2 * 50 * 2  # 20 tokens in blocks of 16
    assert runtime.activations == 10 * (4 * 100 + 2 * 50 + 8) * 2 + 3 * 1000 * 2 * 4
    assert runtime.workspace == 10 * 2 * (100 + 120) * 2
    assert runtime.total == runtime.kv_cache + runtime.activations + runtime.workspace


def test_limits_are_the_manifests(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    assert memory(folder, [1]).limits == Limits()
    synthetic_manifest(4, max_num_batched_tokens=512, max_model_len=300).dump(folder / MANIFEST_FILE)
    report = memory(folder, [1])
    assert report.limits == Limits(64, 512, 300)
    assert report.runtime.kv_cache == 512 * 2 * 64 * 2
    assert memory(folder, [1], Limits(1, 16, 16)).runtime.total < report.runtime.total


def test_a_full_size_layer_against_the_papers_figures(tmp_path: Path) -> None:
    """The paper: 1820 MB alone, 834 MB at 4-way EP; a line through both has its floor at 505 MB."""
    # Sparse files: 1.25 GB by their size, nothing on the disk.
    folder = write_checkpoint(tmp_path / "c", **OLMOE_1B_7B)
    report = memory(folder, [1, 4], Limits(64, 512, 512))
    alone, quarter = report.gpus
    floor = (4 * 834 - 1820) / 3

    assert alone.sharded == 805_306_368
    assert report.replicated.total == 445_927_424
    assert floor == pytest.approx(505.3, abs=0.1)
    # What does not depend on EP agrees: the weights leave room for a few hundred tokens a step.
    assert report.replicated.total / MB < floor
    assert (report.replicated.total + report.runtime.total) / MB == pytest.approx(floor, rel=0.1)
    # What depends on EP does not: the paper's shrinks 1.6 times as fast as the experts' weights do.
    assert (1820 - 834) / ((alone.total - quarter.total) / MB) == pytest.approx(1.63, abs=0.01)


@pytest.mark.parametrize("degrees", [[], [0], [9], [-1], [1] * 65])
def test_degrees_out_of_range_are_refused(tmp_path: Path, degrees: list[int]) -> None:
    folder = write_checkpoint(tmp_path / "c")
    with pytest.raises(ProbeModelError, match="ep: give 1 to 64 degrees of 1 to 8"):
        memory(folder, degrees)
