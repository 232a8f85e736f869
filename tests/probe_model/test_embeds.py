"""Requests by prompt_embeds, as far as they need no torch: expert sets, answers, and serving with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.probe_model.embeds import EmbedsAnswer, check_echo, embeds_request, parse_experts, read_answer
from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import MANIFEST_FILE
from app.probe_model.serve import PROMPT_EMBEDS_NOTE, render_serve_command, serve_command
from app.probe_model.synthetic import synthetic_manifest

ANSWER: dict[str, Any] = {
    "choices": [
        {"index": 0, "token_ids": [51, 51], "logprobs": {"top_logprobs": [{"x1": -0.4, "x2": -3.0}, {"x1": -0.4}]}}
    ]
}
# vLLM 0.32.0 without the option; the message is not repeated.
REFUSAL = {
    "error": {
        "message": "You must set `--enable-prompt-embeds` to input `prompt_embeds`. (parameter=prompt_embeds)",
        "type": "BadRequestError",
        "param": "prompt_embeds",
        "code": 400,
    }
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """2 GPUs of 4 experts, top-4, without weights."""
    synthetic_manifest(2, experts_per_gpu=4, top_k=4).dump(tmp_path / MANIFEST_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "experts"),
    [
        ("1,3,5,6", (1, 3, 5, 6)),
        ("6, 5, 3, 1", (1, 3, 5, 6)),
        ("[0,1,0,1,0,1,1,0]", (1, 3, 5, 6)),
        ("[1]", (0,)),
        ("0,1", (0, 1)),  # without brackets, numbers of experts
    ],
)
def test_experts_are_read_as_numbers_or_as_a_pattern(text: str, experts: tuple[int, ...]) -> None:
    assert parse_experts(text) == experts


@pytest.mark.parametrize("text", ["", "[]", "1,,2", "-1", "1.5", "[0,2]", "[1,0", "1,0]", "a", "٣", "123456"])
def test_other_experts_are_refused(text: str) -> None:
    with pytest.raises(ProbeModelError, match="experts: write experts as 1,3,5,6 or as a pattern"):
        parse_experts(text)


@pytest.mark.parametrize(
    ("experts", "options", "message"),
    [
        ((1, 3, 5), {}, "experts: give 4 distinct ones"),
        ((1, 3, 5, 5), {}, "experts: give 4 distinct ones"),
        ((1, 3, 5, 6, 7), {}, "experts: give 4 distinct ones"),
        ((1, 3, 5, 8), {}, "experts: go from 0 to 7"),
        ((-1, 3, 5, 6), {}, "experts: go from 0 to 7"),
        ((1, 3, 5, 6), {"tokens": 0}, "tokens: prompt and answer need"),
        ((1, 3, 5, 6), {"max_tokens": 0}, "tokens: prompt and answer need"),
        ((1, 3, 5, 6), {"tokens": 4096}, "tokens: prompt and answer need 1 token each, 4096 in all"),
    ],
)
def test_a_request_that_no_server_could_serve(
    folder: Path, experts: tuple[int, ...], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ProbeModelError, match=message):
        embeds_request(folder, experts, **options)


def test_an_answer_is_read() -> None:
    answer = read_answer(200, json.dumps(ANSWER).encode())
    assert answer == EmbedsAnswer((51, 51), {"x1": -0.4, "x2": -3.0})


def test_a_server_without_the_option_is_named_as_such() -> None:
    with pytest.raises(ProbeModelError, match=r"takes none \(400\); start it with --enable-prompt-embeds"):
        read_answer(400, json.dumps(REFUSAL).encode())


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error": {"message": "<b>secret</b>"}}', "the server answered 400"),
        (400, b"secret", "the server answered 400"),
        (400, b"[" * 100_000, "the server answered 400"),
        (401, b"{}", "the server answered 401"),
        (500, json.dumps(REFUSAL).encode(), "the server answered 500"),
        (200, b"secret", "is not one completion"),
        (200, b'{"choices": []}', "is not one completion"),
        # A server that was sent prompt and prompt_embeds answers both.
        (200, json.dumps({"choices": ANSWER["choices"] * 2}).encode(), "is not one completion"),
        (200, b'{"choices": [{"token_ids": null, "logprobs": null}]}', "is not one completion"),
    ],
)
def test_other_answers_are_refused_and_never_repeated(status: int, body: bytes, message: str) -> None:
    with pytest.raises(ProbeModelError) as caught:
        read_answer(status, body)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_sets_own_token_must_follow() -> None:
    manifest = synthetic_manifest(2, experts_per_gpu=4, top_k=4)
    token = manifest.pattern_tokens["1,3,5,6"]
    assert check_echo(manifest, (1, 3, 5, 6), EmbedsAnswer((token, token), {})) == token
    with pytest.raises(ProbeModelError, match=f"token {token} must follow"):
        check_echo(manifest, (1, 3, 5, 6), EmbedsAnswer((token, 2), {}))
    # 16 experts on each of 4 GPUs, top-8: more sets than tokens.
    large = synthetic_manifest(4, experts_per_gpu=16, top_k=8)
    assert check_echo(large, tuple(range(1, 9)), EmbedsAnswer((2,), {})) is None


def test_serving_with_embeddings_is_off_by_default_and_private(folder: Path) -> None:
    assert "--enable-prompt-embeds" not in serve_command(folder)
    for host in ("127.0.0.1", "10.1.2.3", "::1", "localhost"):
        command = serve_command(folder, host=host, prompt_embeds=True)
        assert "--enable-prompt-embeds" in command
        assert f"# {PROMPT_EMBEDS_NOTE}" in render_serve_command(command).splitlines()
    for host in ("0.0.0.0", "::", "8.8.8.8", "example.org"):
        assert serve_command(folder, host=host)
        with pytest.raises(ProbeModelError, match="host: with prompt_embeds it must be localhost or a private"):
            serve_command(folder, host=host, prompt_embeds=True)
