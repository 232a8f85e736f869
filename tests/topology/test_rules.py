"""What a topology document may say, what it must not, and which field is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.localization.placement import layout
from app.topology import documents
from app.topology.rules import is_global, written
from app.topology.schemas import TopologyIn


def gpu(rank: int, host: str = "host-a", **stated: str) -> dict[str, Any]:
    return {"rank": rank, "host": host, **stated}


def fault(document: dict[str, Any]) -> tuple[tuple[int | str, ...], str]:
    """Where the one fault of a document is, and how it is said."""
    with pytest.raises(ValidationError) as caught:
        TopologyIn.model_validate(document)
    (error,) = caught.value.errors()
    return error["loc"], error["msg"]


def test_a_whole_document() -> None:
    gpus = [
        gpu(r, f"host-{r // 2}", device=f"GPU-{r}", nic="mlx5_0", rail="0", leaf=f"l{r // 4}") for r in range(8)
    ]
    for place in gpus:
        place["rack"] = "r1"
    parents = {"l0": "s0", "l1": "s1", "s0": "core", "s1": "core"}
    read = documents.placement(TopologyIn.model_validate({"gpus": gpus[::-1], "parents": parents}).model_dump())
    assert read.document() == {"gpus": gpus, "parents": parents}
    assert read.switches("l1") == ("l1", "s1", "core")


@pytest.mark.parametrize(
    "document",
    [
        layout(16, 4).document(),
        {"gpus": [gpu(0, device="cuda:0"), gpu(1, "host-b", device="cuda:0")]},
        {"gpus": [gpu(0, device="0000:1b:00.0"), gpu(1, "host-b", device="0000:1b:00.0")]},
        {"gpus": [gpu(0, leaf="rail-0", rack="r0"), gpu(1, "host-b", leaf="rail-0", rack="r1")]},
        {"gpus": [gpu(0, nic="mlx5_0", rail="0"), gpu(1, "host-b", nic="mlx5_0", rail="1"), gpu(2, nic="mlx5_0")]},
    ],
)
def test_what_is_said_of_one_host_says_nothing_of_another(document: dict[str, Any]) -> None:
    TopologyIn.model_validate_json(json.dumps(document))


@pytest.mark.parametrize(
    ("gpus", "path", "words"),
    [
        ([gpu(0), gpu(0)], (1, "rank"), "every rank from 0 to 1 exactly once"),
        ([gpu(2), gpu(0)], (0, "rank"), "every rank from 0 to 1 exactly once"),
        (
            [gpu(0, device="GPU-1b2c"), gpu(1, "host-b"), gpu(2, "host-b", device="GPU-1b2c")],
            (2, "device"),
            "one GPU cannot be on two hosts: device id 'GPU-1b2c' is rank 0 on host-a and rank 2 on host-b",
        ),
        ([gpu(0, device="3"), gpu(1, device="3")], (1, "device"), "a host has two GPUs: device id '3'"),
        (
            [gpu(0, device="0000:1b:00.0"), gpu(1, device="00000000:1B:00.0")],
            (1, "device"),
            "a host has two GPUs: device id '00000000:1B:00.0'",
        ),
        (
            [gpu(0, device="GPU-1B2C"), gpu(1, "host-b", device="GPU-1b2c")],
            (1, "device"),
            "one GPU cannot be on two hosts: device id 'GPU-1b2c'",
        ),
        (
            [gpu(0, rack="r1"), gpu(1, rack="r2")],
            (1, "rack"),
            "host host-a has rack 'r2' at rank 1",
        ),
        ([gpu(0, nic="n", rail="1"), gpu(1, nic="n", rail="2")], (1, "rail"), "NIC host-a/n has rail '2'"),
        ([gpu(0, nic="n", leaf="1"), gpu(1, nic="n", leaf="2")], (1, "leaf"), "NIC host-a/n has leaf '2'"),
    ],
)
def test_what_cannot_be_is_named(gpus: list[dict[str, Any]], path: tuple[int | str, ...], words: str) -> None:
    where, message = fault({"gpus": gpus})
    assert where == ("gpus", *path)
    assert words in message


@pytest.mark.parametrize(
    ("parents", "switch", "words"),
    [
        ({"l": "l"}, "l", "switches are above one another: l -> l"),
        ({"l": "s", "s": "c", "c": "s"}, "s", "switches are above one another: s -> c -> s"),
        ({"x": "y", "y": "x"}, "x", "switches are above one another: x -> y -> x"),
        ({"l": "s", "leaf": "s"}, "leaf", "no GPU sits under switch 'leaf'; the leaves are: l, m"),
        ({f"s{i}": f"s{(i + 1) % 40}" for i in range(40)}, "s0", "s11 -> ..."),
    ],
)
def test_tiers_that_are_none_are_named(parents: dict[str, str], switch: str, words: str) -> None:
    where, message = fault({"gpus": [gpu(0, leaf="l"), gpu(1, "host-b", leaf="m")], "parents": parents})
    assert where == ("parents", switch)
    assert words in message


def test_a_leaf_may_be_above_another() -> None:
    document = {"gpus": [gpu(0, leaf="l"), gpu(1, "host-b", leaf="s")], "parents": {"l": "s"}}
    assert TopologyIn.model_validate(document).parents == {"l": "s"}


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("GPU-9d3a", True),
        ("9d3a4a5e-1111-2222-3333-444455556666", True),
        ("serial-7", True),
        ("7", False),
        ("cuda:7", False),
        ("GPU7", False),
        ("hip:0", False),
        ("00000000:1B:00.0", False),
        ("1b:00.0", False),
    ],
)
def test_which_device_ids_name_one_gpu_for_good(device: str, *, expected: bool) -> None:
    assert is_global(device) is expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0000:3B:00.0", "00000000:3b:00.0"),
        ("3b:00.0", "0000:3B:00.0"),
        ("GPU-9D3A4A5E-1111", "gpu-9d3a4a5e-1111"),
        ("9D3A4A5E-1111-2222-3333-444455556666", "9d3a4a5e-1111-2222-3333-444455556666"),
        ("cuda:3", "CUDA3"),
        ("GPU03", "GPU3"),
    ],
)
def test_one_id_may_be_spelt_in_two_ways(one: str, other: str) -> None:
    assert written(one) == written(other)


@pytest.mark.parametrize(
    ("one", "other", "comparable"),
    [
        ("GPU-9d3a", "GPU-9d3b", True),
        ("GPU0", "GPU1", True),
        ("0000:3b:00.0", "0001:3b:00.0", True),
        ("10000:3b:00.0", "0000:3b:00.0", True),
        ("serial-a", "serial-A", True),
        ("GPU-9d3a", "MIG-9d3a", False),
        ("GPU-9d3a", "9d3a", False),
        ("GPU0", "cuda:0", False),
        ("0", "GPU0", False),
        ("cuda:0", "0000:3b:00.0", False),
        ("GPU0", "GPU-9d3a", False),
    ],
)
def test_other_ids_are_others_or_cannot_be_compared(one: str, other: str, *, comparable: bool) -> None:
    assert written(one).text != written(other).text
    assert (written(one).notation == written(other).notation) is comparable
