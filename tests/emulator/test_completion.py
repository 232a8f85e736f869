"""Bodies that are refused, word for word as the recorded vLLM answers."""

import json

import pytest

from app.emulator.completion import ModelLimits, parse_completion
from app.emulator.errors import ApiError

from .support import sample, shape

LIMITS = ModelLimits("probe", 1856, 4096)


def parse(**body):
    return parse_completion(json.dumps(body).encode(), LIMITS)


def refused(body):
    with pytest.raises(ApiError) as caught:
        parse_completion(body if isinstance(body, bytes) else json.dumps(body).encode(), LIMITS)
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "err_wrong_model.txt",
        "err_wrong_model_stream.txt",
        "err_token_negative.txt",
        "err_token_ge_vocab.txt",
        "err_prompt_too_long.txt",
        "err_prompt_embeds_not_enabled_or_bad.txt",
    ],
)
def test_the_answer_is_the_recorded_one(name):
    recorded = sample(name)
    body = dict(recorded.request)
    if body["prompt"] == "<15000 chars>":  # the recording left it out
        body["prompt"] = [7] * 5000
    error = refused(body)
    assert error.status == recorded.status
    assert json.loads(error.body()) == json.loads(recorded.body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", "body.1"),
        (b"[" * 100_000, "body.0"),
        (b"\xff\xfe", "body.0"),
        ([1], "body"),
        ({"prompt": "text"}, "body.prompt"),
        ({"prompt": None}, "body.prompt"),
        ({}, "body.prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [[1], 2]}, "body.prompt.0"),
        ({"prompt": [1, 2.5]}, "body.prompt.1"),
        ({"prompt": [True]}, "body.prompt.0"),
        ({"prompt": [[1], [2, -3]]}, "body.prompt.1.1"),
        ({"prompt": [1], "stream": "yes"}, "body.stream"),
        ({"prompt": [1], "stream_options": [1]}, "body.stream_options"),
        ({"prompt": [1], "max_tokens": "3"}, "body.max_tokens"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "logprobs": 21}, "logprobs"),
        ({"prompt": [1], "n": 2}, "n"),
        ({"prompt": [[1]] * 1025}, "prompt"),
    ],
)
def test_malformed_bodies_name_the_field(body, param):
    error = refused(body)
    assert error.status == 400
    assert error.param == param
    assert shape(json.loads(error.body())) == shape({"error": {"message": "", "type": "", "param": "", "code": 0}})


def test_defaults_and_unknown_fields():
    completion = parse(prompt=[5], temperature=0, some_unknown_field={"a": 1})
    assert completion.prompts == ((5,),)
    assert completion.limits == (16,)
    assert (completion.stream, completion.return_token_ids, completion.include_usage) == (False,) * 3
    assert completion.logprobs is None


def test_padding_ids_are_accepted_and_output_is_cut_to_the_context():
    completion = parse(prompt=[[1855] * 4090, [2]], max_tokens=100)
    assert completion.limits == (6, 100)
    assert refused({"prompt": [1856]}).message == "Token id 1856 is out of vocabulary"
    assert refused({"prompt": [2] * 4096}).param == "input_tokens"
