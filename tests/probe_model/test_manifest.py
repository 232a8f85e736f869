"""The manifest is untrusted input: what it accepts, what it refuses and what it says then."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, load_manifest
from app.probe_model.synthetic import synthetic_manifest

SOURCE = {
    "architecture": "OlmoeForCausalLM",
    "layers": 16,
    "top_k": 8,
    "attention_heads": 16,
    "key_value_heads": 8,
}


@pytest.fixture
def document() -> dict[str, Any]:
    """A valid document with patterns and log-probabilities: 4 GPUs, 2 experts each, top-2."""
    result: dict[str, Any] = json.loads(synthetic_manifest(4).model_dump_json())
    return result


def test_round_trip_through_file_folder_and_parsed_json(tmp_path: Path, document: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(document)
    manifest.dump(tmp_path / MANIFEST_FILE)

    assert load_manifest(tmp_path) == load_manifest(tmp_path / MANIFEST_FILE) == manifest
    assert json.loads((tmp_path / MANIFEST_FILE).read_text()) == document


def test_the_document_has_exactly_the_contract_fields(document: dict[str, Any]) -> None:
    assert list(document) == [
        "schema_version", "model", "gpus", "experts", "experts_per_gpu", "top_k", "hidden_size", "dtype",
        "placement", "gpu_tokens", "pattern_tokens", "logprobs", "max_num_seqs", "max_num_batched_tokens",
        "max_model_len", "bytes_per_gpu", "source",
    ]  # fmt: skip
    assert set(document["bytes_per_gpu"]) == {"replicated", "sharded", "runtime"}
    assert document["source"] is None
    # Documents from before the field existed.
    del document["source"]
    assert Manifest.model_validate(document).source is None


def test_a_source_is_numbers_only(document: dict[str, Any]) -> None:
    document |= {"source": SOURCE}
    assert json.loads(Manifest.model_validate(document).model_dump_json()) == document
    for name in ("path", "folder", "url", "name"):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            Manifest.model_validate(document | {"source": SOURCE | {name: "/etc/passwd"}})


def test_routing_queries(document: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(document)

    assert [manifest.receivers(token) for token in manifest.gpu_tokens] == [(0,), (1,), (2,), (3,)]
    assert manifest.experts_of(document["pattern_tokens"]["1,6"]) == (1, 6)
    assert manifest.receivers(document["pattern_tokens"]["1,6"]) == (0, 3)
    assert manifest.experts_of(0) == manifest.experts_of(63) == (0, 1)
    assert manifest.expected_logprobs(manifest.gpu_tokens[1])[3] < 0
    assert manifest.expected_logprobs(0) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unknown": 1}, "Extra inputs are not permitted"),
        ({"schema_version": 2}, "Input should be 1"),
        ({"model": "a/b"}, "should match pattern"),
        ({"model": "../secret"}, "should match pattern"),
        ({"model": "probe\n"}, "should match pattern"),
        ({"model": "pro\x1bbe"}, "should match pattern"),
        ({"model": ""}, "should match pattern"),
        ({"model": "m" * 129}, "at most 128"),
        ({"gpus": 1}, "greater than or equal to 2"),
        ({"gpus": 1025}, "less than or equal to 1024"),
        ({"gpus": "4"}, "valid integer"),
        ({"gpus": True}, "valid integer"),
        ({"experts": 9}, "experts must be gpus * experts_per_gpu = 8"),
        ({"top_k": 3}, "experts_per_gpu must be at least top_k"),
        ({"hidden_size": 7}, "hidden_size must be at least experts = 8"),
        ({"dtype": "int8"}, "Input should be 'float32'"),
        ({"placement": "round_robin"}, "Input should be 'linear'"),
        ({"gpu_tokens": [2, 3, 4]}, "one id per rank: 4, not 3"),
        ({"gpu_tokens": [2, 3, 4, 4]}, "gpu_tokens must be distinct"),
        ({"gpu_tokens": [2, 3, 4, -5]}, "greater than or equal to 0"),
        ({"pattern_tokens": {"1,0": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"1,1": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"1": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"01,2": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"1,٣": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"1,2\n": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"pattern_tokens": {"1,8": 9}}, "entry 0: experts go from 0 to 7"),
        ({"pattern_tokens": {"0,2": 2}}, "token 2 is GPU 0's"),
        ({"pattern_tokens": {"0,2": 9, "0,3": 9}}, "pattern_tokens must be distinct"),
        ({"logprobs": {"02": [{"token": 2, "logprob": -1.0}]}}, "entry 0: the key must be the id"),
        ({"logprobs": {"60": [{"token": 2, "logprob": -1.0}]}}, "entry 0: the key must be the id"),
        ({"logprobs": {"2": []}}, "at least 1 item"),
        ({"logprobs": {"2": [{"token": 2, "logprob": 0.5}]}}, "less than or equal to 0"),
        ({"logprobs": {"2": [{"token": 2, "logprob": float("nan")}]}}, "finite number"),
        ({"logprobs": {"2": [{"token": 2, "logprob": float("-inf")}]}}, "finite number"),
        ({"logprobs": {"2": [{"token": 2, "logprob": -1.0}] * 2}}, "next tokens must be distinct"),
        ({"max_num_seqs": 0}, "greater than or equal to 1"),
        ({"max_num_batched_tokens": 32}, "max_num_batched_tokens must be at least max_num_seqs"),
        ({"max_model_len": 2**21}, "less than or equal to"),
        ({"bytes_per_gpu": {"replicated": 1, "sharded": 1}}, "Field required"),
        ({"source": {}}, "Field required"),
        ({"source": "/models/olmoe"}, "valid dictionary"),
        ({"source": SOURCE | {"architecture": "MixtralForCausalLM"}}, "Input should be 'OlmoeForCausalLM'"),
        ({"source": SOURCE | {"layers": 0}}, "greater than or equal to 1"),
        ({"source": SOURCE | {"top_k": 1}}, "top_k must be at most source.top_k"),
        ({"source": SOURCE | {"attention_heads": 3}}, "source.attention_heads must divide hidden_size"),
        ({"source": SOURCE | {"key_value_heads": 3}}, "source.key_value_heads must divide"),
        ({"weights": "/etc/passwd"}, "Extra inputs are not permitted"),
        ({"model": "file:///etc/passwd"}, "should match pattern"),
        ({"model": ".."}, "should match pattern"),
        ({"placement": "/etc/passwd"}, "Input should be 'linear'"),
        ({"pattern_tokens": {"../../etc/passwd": 9}}, "entry 0: the key must be 2 ascending experts"),
        ({"bytes_per_gpu": {"replicated": -1, "sharded": 1, "runtime": 1}}, "greater than or equal to 0"),
    ],
)
def test_a_bad_document_is_refused(document: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Manifest.model_validate(document | change)
    assert message in str(caught.value)


def test_sizes_are_capped(document: dict[str, Any]) -> None:
    many = {str(number): number for number in range(100_001)}
    with pytest.raises(ValidationError, match="at most 100000 items"):
        Manifest.model_validate(document | {"pattern_tokens": many})
    with pytest.raises(ValidationError, match="at most 1024 items"):
        Manifest.model_validate(document | {"gpu_tokens": list(range(1025))})
    with pytest.raises(ValidationError, match="at most 448 characters"):
        Manifest.model_validate(document | {"pattern_tokens": {"1," * 300 + "2": 9}})


def test_messages_do_not_repeat_the_input(document: dict[str, Any]) -> None:
    document["model"] = "<script>alert(1)</script>"
    with pytest.raises(ValidationError) as caught:
        Manifest.model_validate(document)
    assert "script" not in str(caught.value)


def test_load_names_the_file_and_the_field(tmp_path: Path, document: dict[str, Any]) -> None:
    file = tmp_path / "m.json"
    with pytest.raises(ProbeModelError, match=r"m\.json: cannot be read"):
        load_manifest(file)
    file.write_text("{")
    with pytest.raises(ProbeModelError, match=r"m\.json: Invalid JSON"):
        load_manifest(file)
    file.write_text(json.dumps(document | {"gpus": 0}))
    with pytest.raises(ProbeModelError, match=r"m\.json: gpus: Input should be greater"):
        load_manifest(file)
    for content in (b"\xff\xfe", b"[" * 1_000_000, b'{"gpus": ' + b"9" * 10_000 + b"}"):
        file.write_bytes(content)
        with pytest.raises(ProbeModelError, match=r"m\.json: "):
            load_manifest(file)
    file.write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(ProbeModelError, match="is larger than"):
        load_manifest(file)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(ProbeModelError, match="is not a regular file"):
        load_manifest(tmp_path / "pipe")


def test_the_largest_manifests_that_are_built_fit_a_request() -> None:
    many_patterns = synthetic_manifest(10, experts_per_gpu=10, top_k=2)
    many_gpus = synthetic_manifest(1024, experts_per_gpu=8, top_k=8, hidden=8192)
    assert len(many_patterns.pattern_tokens) > 4900
    for manifest in (many_patterns, many_gpus):
        # Half of what the API takes by default, FAULTSENSE_MAX_BODY_BYTES.
        assert len(manifest.model_dump_json(indent=1)) < 2 * 2**20
