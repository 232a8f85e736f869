"""Checkpoints are untrusted: what is read, and what each broken one is refused for. Needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.probe_model.build import build_from
from app.probe_model.checkpoint import read_checkpoint
from app.probe_model.errors import ProbeModelError
from app.probe_model.safetensors_header import MAX_HEADER_BYTES, read_header
from tests.probe_model.checkpoints import CONFIG, shapes, write_checkpoint, write_safetensors

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN_7 = "model.layers.0.mlp.experts.7.down_proj.weight"
LM_HEAD = "lm_head.weight"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("shards", [1, 3])
def test_one_file_and_an_index_give_the_same_tensors(tmp_path: Path, shards: int) -> None:
    found = read_checkpoint(write_checkpoint(tmp_path / "c", shards=shards))

    assert found.dtype == "bfloat16"
    assert {key: entry.shape for key, entry in found.tensors.items()} == shapes(CONFIG)
    assert found.config.key_value_width == 64
    files = {entry.file.name for entry in found.tensors.values()}
    assert len(files) == shards
    assert (files == {WEIGHTS}) == (shards == 1)


def test_older_and_other_forms_are_read(tmp_path: Path) -> None:
    # Key/value heads may be absent or null; a tied output projection is not stored.
    tied = read_checkpoint(
        write_checkpoint(tmp_path / "c", num_key_value_heads=None, tie_word_embeddings=True, clip_qkv=None)
    )
    assert tied.config.key_value_width == 128
    assert LM_HEAD not in tied.tensors


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "blobs").mkdir()
    (folder / WEIGHTS).rename(folder / "blobs" / "0123")
    (folder / WEIGHTS).symlink_to("blobs/0123")
    assert read_checkpoint(folder).tensors[Q_PROJ].file == (folder / "blobs" / "0123").resolve()


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))


def nothing(_: object) -> None:
    pass


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mixtral"}, "config.json: model_type: must be olmoe"),
    ({"architectures": ["MixtralForCausalLM"]}, "config.json: architectures: must be OlmoeForCausalLM"),
    ({"architectures": None}, "config.json: architectures"),
    (
        {"auto_map": {"AutoModel": "evil.py--Model"}},
        "config.json: auto_map: names code of its own",
    ),
    ({"quantization_config": {"quant_method": "fp8"}}, "config.json: quantization_config: must be absent"),
    ({"hidden_size": "128"}, "config.json: hidden_size: Input should be a valid integer"),
    ({"hidden_size": 10**30}, "config.json: hidden_size: Input should be less than or equal to 8192"),
    ({"hidden_size": -128}, "config.json: hidden_size"),
    ({"num_experts": 10**9}, "config.json: num_experts"),
    ({"num_experts_per_tok": 9}, "config.json: num_experts_per_tok must be at most num_experts"),
    ({"num_attention_heads": 3, "num_key_value_heads": 3}, "config.json: num_attention_heads must divide"),
    ({"num_key_value_heads": 3}, "config.json: num_key_value_heads must divide"),
    ({"hidden_act": "gelu"}, "config.json: hidden_act: Input should be 'silu'"),
    ({"attention_bias": True}, "config.json: attention_bias: Input should be False"),
]


@pytest.mark.parametrize(("change", "message"), CONFIGS)
def test_a_config_that_is_no_plain_olmoe_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = write_checkpoint(tmp_path / "c")
    edit(folder, "config.json", lambda config: config.update(change))
    with pytest.raises(ProbeModelError) as caught:
        read_checkpoint(folder)
    assert message in str(caught.value)
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "dtypes", "message"),
    [
        (lambda t: t.pop(DOWN_7), {}, f"{WEIGHTS}: {DOWN_7}: is missing"),
        (lambda t: t.pop(LM_HEAD), {}, f"{WEIGHTS}: {LM_HEAD}: is missing"),
        (lambda t: t.update({DOWN_7: (256, 128)}), {}, f"{DOWN_7}: has shape [256, 128], but by config.json"),
        (lambda t: t.update({Q_PROJ: (128,)}), {}, f"{Q_PROJ}: has shape [128], but by config.json"),
        (nothing, {DOWN_7: "F32"}, f"{WEIGHTS}: {DOWN_7}: has element type F32, others BF16"),
        (nothing, {Q_PROJ: "I8"}, f"{WEIGHTS}: {Q_PROJ}: has element type I8; it must be F32, BF16, F16"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], dtypes: dict[str, str], message: str
) -> None:
    folder = write_checkpoint(tmp_path / "c")
    tensors = shapes(CONFIG)
    change(tensors)
    write_safetensors(folder / WEIGHTS, tensors, dtypes)
    with pytest.raises(ProbeModelError) as caught:
        read_checkpoint(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/model.safetensors",
        "..",
        "",
        "model.bin",
        "a\n.safetensors",
        ".safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_names_files_of_the_folder_only(tmp_path: Path, name: Any) -> None:
    write_safetensors(tmp_path / "secret.safetensors", shapes(CONFIG))
    folder = write_checkpoint(tmp_path / "c", shards=2)
    edit(folder, INDEX, lambda index: index["weight_map"].update({Q_PROJ: name}))
    with pytest.raises(ProbeModelError, match=r"weight_map: .*must be the plain name of a \.safetensors file"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", INDEX, "model-00002-of-00002.safetensors"])
def test_no_link_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "c", shards=2)
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ProbeModelError, match=f"^{name}: is a link that leaves the folder"):
        read_checkpoint(folder)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", shards=2)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.unlink()
    with pytest.raises(ProbeModelError, match=r"model-00001-of-00002\.safetensors: cannot be read"):
        read_checkpoint(folder)
    os.mkfifo(shard)  # opening it would wait for ever
    with pytest.raises(ProbeModelError, match="is not a regular file"):
        read_checkpoint(folder)
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(ProbeModelError, match="cannot be read"):
        read_checkpoint(folder)


def test_an_index_that_disagrees_with_its_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", shards=2)
    good = json.loads((folder / INDEX).read_text())["weight_map"][Q_PROJ]
    other = (
        "model-00001-of-00002.safetensors"
        if good.endswith("2-of-00002.safetensors")
        else "model-00002-of-00002.safetensors"
    )
    edit(folder, INDEX, lambda index: index["weight_map"].update({Q_PROJ: other}))
    with pytest.raises(ProbeModelError, match=f"{other}: {Q_PROJ}: is missing"):
        read_checkpoint(folder)
    edit(folder, INDEX, lambda index: index["weight_map"].pop(Q_PROJ))
    with pytest.raises(ProbeModelError, match=f"{INDEX}: {Q_PROJ}: is missing"):
        read_checkpoint(folder)
    for content in ("[]", "{", '{"weight_map": []}', '{"weight_map": null}', "[" * 100_000):
        (folder / INDEX).write_text(content)
        with pytest.raises(ProbeModelError, match=INDEX):
            read_checkpoint(folder)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ProbeModelError, match="pickled weights are never read, convert them to safetensors"):
        read_checkpoint(folder)
    with pytest.raises(ProbeModelError, match=r"config\.json: cannot be read"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_truncated_file_is_found_before_it_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    file = folder / WEIGHTS
    os.truncate(file, file.stat().st_size - 5)
    # The last tensor that the config asks for is the last one in the file.
    with pytest.raises(ProbeModelError, match=rf"{WEIGHTS}: {DOWN_7}: the file is truncated, 5 bytes before"):
        read_checkpoint(folder)
    for size in (100, 8, 7, 0):
        os.truncate(file, size)
        with pytest.raises(ProbeModelError, match=f"{WEIGHTS}: is no safetensors file, or is truncated"):
            read_checkpoint(folder)


def header(file: Path, content: bytes, length: int | None = None, data: int = 0) -> Path:
    file.write_bytes((len(content) if length is None else length).to_bytes(8, "little") + content + bytes(data))
    return file


def entry(**changes: Any) -> bytes:
    return json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "the header is wrong"),
        (b"{", "its header is not JSON"),
        (b"\xff\xfe", "its header is not JSON"),
        (b"[" * 100_000, "its header is not JSON"),
        (entry(shape=[3]), "t: the header is wrong: the tensor's bytes do not agree with its shape"),
        (entry(data_offsets=[8, 0]), "t: the header is wrong"),
        (entry(data_offsets=[0, 16]), "t: the file is truncated"),
        (entry(data_offsets=[0, 10**30]), "t: the header is wrong"),
        (entry(shape=[-2]), "t: the header is wrong"),
        (entry(shape="2"), "t: the header is wrong"),
        (entry(shape=[1] * 9), "t: the header is wrong"),
        (entry(dtype=None), "t: the header is wrong"),
        (b'{"t": 1}', "t: the header is wrong"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ProbeModelError) as caught:
        read_header(header(tmp_path / "m.safetensors", content, data=8))
    assert str(caught.value).startswith("m.safetensors: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_header_is_bounded(tmp_path: Path) -> None:
    assert read_header(header(tmp_path / "m", entry(), data=8))["t"].nbytes == 8
    for length in (2**63, MAX_HEADER_BYTES + 1):
        file = header(tmp_path / "m", b"{}", length)
        os.truncate(file, MAX_HEADER_BYTES + 100)  # sparse
        with pytest.raises(ProbeModelError, match="truncated within its header"):
            read_header(file)


@pytest.mark.parametrize(
    ("gpus", "top_k", "message"),
    [
        (1, None, "gpus: must be at least 2 and divide the 8 experts"),
        (3, None, "gpus: must be at least 2 and divide the 8 experts"),
        (16, 1, "gpus: must be at least 2 and divide the 8 experts"),
        (4, None, "top_k: a GPU would hold 2 experts; lower top_k to 2 or less"),
        (2, 5, "top_k: must be 1 to the checkpoint's 4"),
        (2, 0, "top_k: must be 1 to the checkpoint's 4"),
    ],
)
def test_gpus_must_hold_what_a_token_needs(tmp_path: Path, gpus: int, top_k: int | None, message: str) -> None:
    folder = write_checkpoint(tmp_path / "c")
    with pytest.raises(ProbeModelError) as caught:
        build_from(folder, gpus, tmp_path / "out", top_k=top_k)
    assert str(caught.value) == message
    assert not (tmp_path / "out").exists()
