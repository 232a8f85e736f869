"""prompt_embeds on a real vLLM server: the paper's pattern activates exactly its experts.

Two ranks hold the paper's eight experts, four each; the plugin's routing log tells which experts computed rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.probe_model.embeds import check_echo, read_answer
from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import Manifest, load_manifest
from scripts.vllm_server import VllmServer, run_where_torch_is

pytestmark = pytest.mark.vllm

PATTERN = "[0,1,0,1,0,1,1,0]"
EXPERTS = (1, 3, 5, 6)
# More rows than any idle rank's dummy step has, so that the log tells them apart.
PROMPT_TOKENS = 37


# Where torch is: a checkpoint by transformers, the probe model of its first layer, the body for the pattern, and
# one body with the other 69 sets.
PREPARE = """
import json, sys
from itertools import combinations
from pathlib import Path
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM
from app.probe_model.build import build_from
from app.probe_model.embeds import embeds_request, parse_experts
from app.probe_model.verify import verify

folder, pattern, tokens = Path(sys.argv[1]), parse_experts(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
config = OlmoeConfig(
    vocab_size=300, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, num_experts=8, num_experts_per_tok=4, initializer_range=0.1, eos_token_id=1,
)
OlmoeForCausalLM(config).save_pretrained(folder / "checkpoint", max_shard_size="500KB")
build_from(folder / "checkpoint", 2, folder / "model", max_num_seqs=16)
verify(folder / "model")
others = [embeds_request(folder / "model", s) for s in combinations(range(8), 4) if s != pattern]
bodies = {
    "pattern": embeds_request(folder / "model", pattern, tokens=tokens, max_tokens=3),
    "others": others[0] | {"prompt_embeds": [body["prompt_embeds"] for body in others]},
}
(folder / "bodies.json").write_text(json.dumps(bodies))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``checkpoint``, ``model`` and ``bodies.json``."""
    folder = tmp_path_factory.mktemp("embeds")
    run_where_torch_is(Path(os.environ["VLLM_VENV"]), PREPARE, folder, PATTERN, PROMPT_TOKENS)
    assert len(list((folder / "checkpoint").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return load_manifest(folder / "model")


@pytest.fixture(scope="module")
def bodies(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((folder / "bodies.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[VllmServer]:
    running = VllmServer(
        Path(os.environ["VLLM_VENV"]),
        folder / "model",
        routing_log=folder / "routing",
        log=folder / "server.log",
        extra=["--enable-prompt-embeds"],
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


def post(server: VllmServer, body: dict[str, Any], rank: int = 0) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)}, timeout=60
    )


def routed(server: VllmServer) -> dict[int, int]:
    """The most rows that each expert computed in one step, since the log was last emptied."""
    folder, most = server.log.parent, dict.fromkeys(range(8), 0)
    for file in folder.glob("routing.*.jsonl"):
        for line in file.read_text().splitlines():
            for expert, rows in json.loads(line)["rows"].items():
                most[int(expert)] = max(most[int(expert)], rows)
        file.unlink()
    return most


@pytest.mark.parametrize("rank", [0, 1])
def test_the_papers_pattern_activates_exactly_its_experts(
    server: VllmServer, manifest: Manifest, bodies: dict[str, Any], rank: int
) -> None:
    routed(server)
    answered = post(server, bodies["pattern"], rank)
    answer = read_answer(answered.status_code, answered.content)
    rows = routed(server)

    assert {expert for expert, most in rows.items() if most >= PROMPT_TOKENS} == set(EXPERTS), rows
    # The prompt was the embeddings alone, and decoding goes on with the token of the same set.
    assert check_echo(manifest, EXPERTS, answer) == manifest.pattern_tokens["1,3,5,6"]


def test_the_answer_is_that_of_the_sets_own_token(
    server: VllmServer, manifest: Manifest, bodies: dict[str, Any]
) -> None:
    """Log-probabilities depend on the experts: the pattern's are those of its own token, no other set's are."""
    token = manifest.pattern_tokens["1,3,5,6"]
    by_token = {name: value for name, value in bodies["pattern"].items() if name != "prompt_embeds"}
    expected, got = (
        read_answer(answered.status_code, answered.content)
        for answered in (post(server, by_token | {"prompt": [token]}), post(server, bodies["pattern"]))
    )
    assert got.tokens == expected.tokens
    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)

    others = post(server, bodies["others"]).json()["choices"]
    assert sorted(choice["token_ids"][0] for choice in others) == sorted(
        {*manifest.pattern_tokens.values()} - {token}
    )


def test_what_is_no_tensor_is_refused_by_the_server(server: VllmServer, bodies: dict[str, Any]) -> None:
    answered = post(server, bodies["pattern"] | {"prompt_embeds": "AAAA"})
    with pytest.raises(ProbeModelError, match="the server answered 400"):
        read_answer(answered.status_code, answered.content)


def test_prompt_and_embeddings_together_are_two_answers(server: VllmServer, bodies: dict[str, Any]) -> None:
    # Why a request never carries both.
    both = post(server, bodies["pattern"] | {"prompt": [2]})
    assert len(both.json()["choices"]) == 2
