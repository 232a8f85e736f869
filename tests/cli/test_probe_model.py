"""``faultsense probe-model``: what its commands print and refuse, as far as that needs no torch."""

from __future__ import annotations

import http.server
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.probe_model.manifest import MANIFEST_FILE
from app.probe_model.synthetic import synthetic_manifest
from tests.cli.support import refused, run
from tests.probe_model.checkpoints import write_checkpoint

without_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")


def test_memory_is_one_json_object(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    found = run("probe-model", "memory", folder, "--ep", "1,2,8", "--json").document

    assert [gpu["ep"] for gpu in found["gpus"]] == [1, 2, 8]
    for gpu in found["gpus"]:
        assert gpu["sharded"] == 8 // gpu["ep"] * 3 * 128 * 256 * 2
        assert gpu["replicated"] == sum(found["replicated_parts"].values())
        assert gpu["runtime"] == sum(found["runtime_parts"].values())
        assert gpu["total"] == gpu["replicated"] + gpu["sharded"] + gpu["runtime"]
    assert found["runtime_parts"].keys() == {"kv_cache", "activations", "workspace"}
    assert found["limits"] == {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    assert found["estimated"] == ["runtime"]


def test_memory_is_readable(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    first, second, last = run("probe-model", "memory", folder, "--ep", "1,2").out.splitlines()
    assert first.startswith("EP 1: ")
    assert "8 experts 1.5 + runtime" in first
    assert "4 experts 0.8 + runtime" in second
    assert last.startswith("runtime is an estimate: KV cache ")


@pytest.mark.parametrize("ep", ["", "1,", "one", "0", "9", "-1"])
def test_memory_refuses_degrees(tmp_path: Path, ep: str) -> None:
    refused(run("probe-model", "memory", write_checkpoint(tmp_path / "c"), "--ep", ep), "ep")


def test_memory_names_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", shards=2)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["lm_head.weight"] = "../../etc/passwd"
    index.write_text(json.dumps(document))
    refused(run("probe-model", "memory", folder), "lm_head.weight", "plain name of a .safetensors file")


@pytest.mark.parametrize("option", ["--experts-per-gpu", "--hidden", "--intermediate", "--seed"])
def test_a_checkpoint_decides_its_sizes(tmp_path: Path, option: str) -> None:
    folder = write_checkpoint(tmp_path / "c")
    out = tmp_path / "out"
    refused(
        run("probe-model", "build", "--from", folder, "--gpus", 2, "--out", out, option, 128),
        f"{option}: with --from, the checkpoint decides this",
    )
    assert not out.exists()


def test_build_from_names_what_is_wrong(tmp_path: Path) -> None:
    folder, out = write_checkpoint(tmp_path / "c"), tmp_path / "out"
    build = ("probe-model", "build", "--from", folder, "--out", out)
    refused(run(*build, "--gpus", 4), "top_k: a GPU would hold 2 experts; lower top_k to 2 or less")
    refused(run(*build, "--gpus", 4, "--top-k", 2, "--dtype", "int8"), "dtype: must be one of")
    refused(run(*build, "--gpus", 3), "gpus: must be at least 2 and divide the 8 experts")
    refused(run("probe-model", "build", "--from", tmp_path / "no", "--out", out, "--gpus", 2), "cannot be read")
    assert not out.exists()


@without_torch
def test_what_needs_torch_says_so(tmp_path: Path) -> None:
    folder, out = write_checkpoint(tmp_path / "c"), tmp_path / "out"
    refused(run("probe-model", "build", "--from", folder, "--gpus", 2, "--out", out), "faultsense[torch]")
    synthetic_manifest(2, experts_per_gpu=4, top_k=4).dump(tmp_path / MANIFEST_FILE)
    refused(run("probe-model", "embeds", tmp_path, "--experts", "1,3,5,6"), "faultsense[torch]")
    assert not out.exists()


def test_embeds_refuses_sets_before_anything_else(tmp_path: Path) -> None:
    synthetic_manifest(2, experts_per_gpu=4, top_k=4).dump(tmp_path / MANIFEST_FILE)
    refused(run("probe-model", "embeds", tmp_path, "--experts", "1,3,5"), "experts: give 4 distinct ones")
    refused(run("probe-model", "embeds", tmp_path, "--experts", "x"), "experts: write experts as")
    refused(run("probe-model", "embeds", tmp_path / "none", "--experts", "1"), "cannot be read")


class Server(http.server.BaseHTTPRequestHandler):
    """Answers every request with what the test chose, and keeps what it was sent."""

    answer: tuple[int, dict[str, Any]]
    sent: list[dict[str, Any]]

    def do_POST(self) -> None:
        assert self.path == "/v1/completions"
        self.sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(json.dumps(self.answer[1]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.sent = []
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """2 GPUs of 4 experts, top-4, with a body that needs no torch to be made."""
    synthetic_manifest(2, experts_per_gpu=4, top_k=4).dump(tmp_path / MANIFEST_FILE)
    monkeypatch.setattr("app.probe_model.embeds._encode", lambda *_: "AAAA")
    return tmp_path


def test_embeds_are_printed_unless_there_is_a_url(folder: Path) -> None:
    body = run("probe-model", "embeds", folder, "--experts", "[0,1,0,1,0,1,1,0]", "--max-tokens", 2).document
    assert (body["prompt_embeds"], body["max_tokens"]) == ("AAAA", 2)
    assert "prompt" not in body


def test_embeds_are_sent_and_the_answer_is_checked(folder: Path, server: str) -> None:
    command = ("probe-model", "embeds", folder, "--experts", "1,3,5,6", "--url", server)
    token = synthetic_manifest(2, experts_per_gpu=4, top_k=4).pattern_tokens["1,3,5,6"]
    choice = {"token_ids": [token], "logprobs": {"top_logprobs": [{"x1_3_5_6": -0.4}]}}

    Server.answer = 200, {"choices": [choice]}
    assert run(*command).document == {
        "experts": [1, 3, 5, 6],
        "tokens": [token],
        "expected_token": token,
        "logprobs": {"x1_3_5_6": -0.4},
    }
    assert [body["prompt_embeds"] for body in Server.sent] == ["AAAA"]
    Server.answer = 200, {"choices": [choice | {"token_ids": [2]}]}
    refused(run(*command), f"token {token} must follow; another probe model is served")
    Server.answer = 400, {"error": {"message": "You must set `--enable-prompt-embeds` to input `prompt_embeds`."}}
    refused(run(*command), "takes none (400)", "--enable-prompt-embeds", "trusted users only")
    Server.answer = 302, {}
    refused(run(*command), "the server answered 302")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://8.8.8.8", "8.8.8.8 is not in the networks"),
        ("http://169.254.169.254", "metadata"),
        ("http://0x08080808/", "is not in the networks"),
        ("ftp://127.0.0.1", "http://"),
        ("http://user:secret@127.0.0.1", "credentials do not belong"),
        ("http://127.0.0.1:1", "--url: "),
    ],
)
def test_embeds_stay_in_private_networks(folder: Path, url: str, word: str) -> None:
    refused(run("probe-model", "embeds", folder, "--experts", "1,3,5,6", "--url", url), word)


def test_serving_with_embeddings_must_be_asked_for(tmp_path: Path) -> None:
    synthetic_manifest(2).dump(tmp_path / MANIFEST_FILE)
    command = ("probe-model", "serve-command", tmp_path)
    assert "prompt" not in run(*command).out
    assert "CVE-2025-62164" in run(*command, "--prompt-embeds").out
    refused(run(*command, "--prompt-embeds", "--host", "0.0.0.0"), "host: with prompt_embeds")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"experts_per_gpu": 4, "top_k": 2, "hidden": 2048, "dtype": "bfloat16"}),
        (
            ("--top-k", 3, "--hidden", 256, "--seed", 0, "--intermediate", 384, "--dtype", "float32"),
            {
                "experts_per_gpu": 4,
                "top_k": 3,
                "hidden": 256,
                "dtype": "float32",
                "seed": 0,
                "intermediate": 384,
            },
        ),
    ],
)
def test_build_fills_in_what_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], expected: dict[str, Any]
) -> None:
    given: dict[str, Any] = {}

    def build(**arguments: Any) -> Any:
        given.update(arguments)
        return synthetic_manifest(2)

    monkeypatch.setattr("app.probe_model.build.build", build)
    run("probe-model", "build", "--gpus", 2, "--out", tmp_path / "out", *words)
    assert given == {"gpus": 2, "out": tmp_path / "out", "model": "probe", **expected}


def test_build_from_passes_on_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def build_from(*arguments: Any, **options: Any) -> Any:
        given.extend([*arguments, options])
        return synthetic_manifest(2)

    monkeypatch.setattr("app.probe_model.build.build_from", build_from)
    out = run("probe-model", "build", "--from", tmp_path, "--gpus", 2, "--out", tmp_path / "out", "--top-k", 1)
    assert given == [tmp_path, 2, tmp_path / "out", {"model": "probe", "top_k": 1, "dtype": None}]
    assert "next: faultsense probe-model verify" in out.out
