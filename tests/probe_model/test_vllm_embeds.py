"""The bodies of prompt_embeds requests against transformers' own routing; runs in the vLLM environment."""

from __future__ import annotations

import base64
import io
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="runs in the vLLM environment only (make test-vllm)")
pytest.importorskip("transformers", reason="runs in the vLLM environment only (make test-vllm)")

from transformers import OlmoeForCausalLM  # noqa: E402

from app.probe_model.build import build  # noqa: E402
from app.probe_model.embeds import embeds_request, parse_experts  # noqa: E402
from app.probe_model.errors import ProbeModelError  # noqa: E402

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 GPUs of 4 experts, top-4: the paper's eight experts."""
    folder = tmp_path_factory.mktemp("embeds") / "model"
    build(2, 4, 4, 128, folder, dtype="bfloat16")
    return folder


def decoded(request: dict[str, Any]) -> Any:
    return torch.load(io.BytesIO(base64.b64decode(request["prompt_embeds"], validate=True)), weights_only=True)


def test_the_body_has_embeddings_and_no_prompt(folder: Path) -> None:
    request = embeds_request(folder, parse_experts("[0,1,0,1,0,1,1,0]"), tokens=3, max_tokens=2)
    assert "prompt" not in request
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("probe", 2, 0)
    embeds = decoded(request)
    assert (embeds.shape, embeds.dtype) == ((3, 128), torch.bfloat16)
    assert embeds[:, [1, 3, 5, 6]].unique().tolist() == [64.0]
    assert embeds.count_nonzero() == 3 * 4


def test_every_set_activates_exactly_its_experts(folder: Path) -> None:
    model = OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for experts in combinations(range(8), 4):
        embeds = decoded(embeds_request(folder, experts)).float()
        with torch.no_grad():
            output = model(inputs_embeds=embeds[None], output_router_logits=True)
        assert sorted(output.router_logits[0][0].topk(4).indices.tolist()) == list(experts)


def test_an_embedding_that_is_no_pattern_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "model"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.embed_tokens.weight"][2, 9] = 1.0
    save_file(weights, broken / "model.safetensors")
    with pytest.raises(ProbeModelError, match="its embedding is not a pattern"):
        embeds_request(broken, (1, 3, 5, 6))
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ProbeModelError, match=r"model\.safetensors: the embedding cannot be read"):
        embeds_request(broken, (1, 3, 5, 6))
