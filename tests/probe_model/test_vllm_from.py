"""Probe models from real OLMoE checkpoints, made here by transformers; runs in the vLLM environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="runs in the vLLM environment only (make test-vllm)")
pytest.importorskip("transformers", reason="runs in the vLLM environment only (make test-vllm)")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import OlmoeConfig, OlmoeForCausalLM  # noqa: E402

from app.probe_model.build import build, build_from  # noqa: E402
from app.probe_model.errors import ProbeModelError  # noqa: E402
from app.probe_model.files import MODEL_FILES, WEIGHTS_FILE  # noqa: E402
from app.probe_model.manifest import Source, load_manifest  # noqa: E402
from app.probe_model.memory import memory  # noqa: E402
from app.probe_model.verify import verify  # noqa: E402

pytestmark = pytest.mark.vllm

LAYER = "model.layers.0."
EXPERTS, TOP_K = 16, 4
# Of random weights; 0.02 is OLMoE's own.
SPREADS = (0.02, 0.1, 0.5)


def checkpoint(folder: Path, spread: float = 0.1, dtype: Any = torch.bfloat16) -> Path:
    """Two layers, 16 experts, top-4, half as many key heads as query heads, in several shards."""
    torch.manual_seed(int(1000 * spread))
    config = OlmoeConfig(
        vocab_size=300,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        initializer_range=spread,
        eos_token_id=1,
    )
    model = OlmoeForCausalLM(config).to(dtype)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.normal_(1.0, 0.3)  # trained norms are not ones
    model.save_pretrained(folder, max_shard_size="1MB")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("olmoe") / "checkpoint")


def stored(folder: Path) -> dict[str, Any]:
    return {key: tensor for file in folder.glob("*.safetensors") for key, tensor in load_file(file).items()}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("gpus", "top_k"), [(4, None), (8, 2), (16, 1)])
def test_a_layer_of_a_checkpoint_verifies(tmp_path: Path, spread: float, gpus: int, top_k: int | None) -> None:
    folder = checkpoint(tmp_path / "checkpoint", spread)
    manifest = build_from(folder, gpus, tmp_path / "model", top_k=top_k)
    report = verify(tmp_path / "model")

    assert (manifest.experts, manifest.experts_per_gpu, manifest.dtype) == (EXPERTS, EXPERTS // gpus, "bfloat16")
    assert manifest.top_k == (top_k or TOP_K)
    assert report.echoed == max(len(manifest.pattern_tokens), gpus)
    assert report.echo_margin > 0.9
    assert report.routing_gap > 1.0
    assert report.logprob_tokens == len(manifest.logprobs) >= gpus
    assert report.logprob_error < 2e-5


def test_experts_and_attention_are_the_checkpoints_bit_for_bit(source: Path, tmp_path: Path) -> None:
    manifest = build_from(source, 4, tmp_path / "model")
    ours, theirs = stored(tmp_path / "model"), stored(source)

    kept = [key for key in ours if ".mlp.experts." in key]
    assert len(kept) == 3 * EXPERTS
    kept += [f"{LAYER}{name}.weight" for name in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm")]
    kept += [f"{LAYER}self_attn.{name}_proj.weight" for name in "qkv"]
    for key in kept:
        assert torch.equal(ours[key], theirs[key]), key
    assert not ours[f"{LAYER}self_attn.o_proj.weight"].any()
    assert torch.equal(ours[f"{LAYER}mlp.gate.weight"].float(), torch.eye(EXPERTS, 128))
    assert manifest == load_manifest(tmp_path / "model")
    assert manifest.source == Source(layers=2, top_k=TOP_K, attention_heads=4, key_value_heads=2)
    assert {file.name for file in (tmp_path / "model").iterdir()} == MODEL_FILES
    build_from(source, 4, tmp_path / "again")
    for name in MODEL_FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert str(source) not in (tmp_path / "model" / "probe_manifest.json").read_text()


def test_the_manifests_memory_is_that_of_the_files(source: Path, tmp_path: Path) -> None:
    manifest = build_from(source, 4, tmp_path / "model")
    weights = stored(tmp_path / "model")
    experts = sum(tensor.nbytes for key, tensor in weights.items() if ".experts." in key)
    (gpu,) = memory(tmp_path / "model", [4]).gpus

    assert manifest.bytes_per_gpu.sharded == gpu.sharded == experts // 4
    assert manifest.bytes_per_gpu.replicated == gpu.replicated
    assert gpu.replicated + experts == sum(tensor.nbytes for tensor in weights.values())
    assert manifest.bytes_per_gpu.runtime == gpu.runtime


@pytest.mark.parametrize("spread", SPREADS)
def test_one_missing_expert_of_a_checkpoint_shows(tmp_path: Path, spread: float) -> None:
    manifest = build_from(checkpoint(tmp_path / "checkpoint", spread), 4, tmp_path / "model", dtype="float32")
    model = OlmoeForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    down = model.model.layers[0].mlp.experts.down_proj.data

    for token in map(int, manifest.logprobs):
        for expert in manifest.experts_of(token):
            before = down[expert].clone()
            down[expert] = 0.0
            with torch.no_grad():
                logprobs = model(torch.tensor([[token]])).logits[0, 0].log_softmax(dim=0)
            down[expert] = before
            shift = max(abs(float(logprobs[t]) - v) for t, v in manifest.expected_logprobs(token).items())
            assert shift > manifest.logprob_tolerance, f"expert {expert} of token {token}"


def test_a_probe_model_is_a_checkpoint_too_and_may_replace_itself(tmp_path: Path) -> None:
    build(4, 4, 4, 128, tmp_path / "model")
    manifest = build_from(tmp_path / "model", 8, tmp_path / "model", top_k=2, dtype="bfloat16")
    assert (manifest.gpus, manifest.top_k, manifest.dtype) == (8, 2, "bfloat16")
    verify(tmp_path / "model")


def test_weights_that_cannot_echo_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", dtype=torch.float32)
    weights = stored(folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()

    def change(part: str, value: float) -> None:
        changed = {
            key: torch.full_like(t, value) if f"layers.0.mlp.experts.{part}" in key else t
            for key, t in weights.items()
        }
        save_file(changed, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    change("5.up_proj", float("nan"))
    with pytest.raises(ProbeModelError, match=r"experts\.5\.up_proj\.weight: holds values that are not finite"):
        build_from(folder, 4, tmp_path / "model")
    change("", 0.0)
    with pytest.raises(ProbeModelError, match="from: the experts add nothing"):
        build_from(folder, 4, tmp_path / "model")
    change("", 1e20)
    with pytest.raises(ProbeModelError, match="from: the experts' products overflow"):
        build_from(folder, 4, tmp_path / "model")
    change("", 60.0)
    with pytest.raises(ProbeModelError, match="from: float16 embeddings large enough to echo would overflow"):
        build_from(folder, 4, tmp_path / "model", dtype="float16")
    assert not (tmp_path / "model").exists()
    build_from(folder, 4, tmp_path / "model")


def test_a_file_that_shrinks_after_it_was_checked(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import app.probe_model.build as module

    folder = tmp_path / "checkpoint"
    checkpoint(folder)
    found = module.read_checkpoint(folder)
    monkeypatch.setattr(module, "read_checkpoint", lambda _: found)
    shard = found.tensors[f"{LAYER}mlp.experts.0.down_proj.weight"].file
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ProbeModelError, match=rf"{shard.name}: cannot be read"):
        build_from(folder, 4, tmp_path / "model")


def test_the_config_keeps_the_attention_heads(source: Path, tmp_path: Path) -> None:
    build_from(source, 4, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["num_hidden_layers"] == 1
