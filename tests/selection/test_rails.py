"""Rail files: what upstream would fall back from is an error here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.selection.errors import RailFileError
from app.selection.rails import Rail, check_names, read_rails
from tests.selection.support import RAILS


def _pair(local: str, remote: str) -> dict[str, str]:
    return {"local": local, "remote": remote}


def test_bytes_arrive_at_the_direct_remote() -> None:
    mesh = [_pair(a, b) for a in ("a0", "a1") for b in ("b0", "b1")]
    direct = [_pair("a0", "b1")]
    assert read_rails(json.dumps({"all": mesh, "direct": direct})) == (
        Rail("a0", ("b1",)),
        Rail("a1", ("b0", "b1")),
    )


def test_either_list_may_stand_alone() -> None:
    assert read_rails(json.dumps({"all": RAILS["all"]})) == read_rails(json.dumps({"direct": RAILS["direct"]}))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "not JSON"),
        ([], "must be a JSON object"),
        ({}, "neither `all` nor `direct`"),
        ({"all": []}, "all: "),
        ({"all": [{"local": "a"}]}, "all.0.remote"),
        ({"all": [_pair("", "b")]}, "all.0.local"),
        ({"all": [_pair("a", "b")] * 2}, "all.1: a - b stands twice"),
        ({"direct": [_pair("a", "b"), _pair("a", "c")]}, "a has two direct remotes"),
        ({"all": [_pair("a", "b")], "direct": [_pair("a", "c")]}, "a - c is not among `all`"),
    ],
)
def test_refused(document: Any, words: str) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(RailFileError, match=words):
        read_rails(text)


def test_unknown_names_are_errors() -> None:
    rails = read_rails(json.dumps(RAILS))
    check_names(rails, {"mlx5_0", "mlx5_1"}, {"mlx5_4", "mlx5_5"})
    check_names(rails, {"mlx5_0", "mlx5_1"}, set())
    with pytest.raises(RailFileError, match="unknown local device mlx5_1; the records have mlx5_0"):
        check_names(rails, {"mlx5_0"}, set())
    with pytest.raises(RailFileError, match="unknown remote device mlx5_5"):
        check_names(rails, {"mlx5_0", "mlx5_1"}, {"mlx5_4"})
    with pytest.raises(RailFileError, match=r"the records have a00, .*, a15 and 4 more$"):
        check_names(rails, {f"a{i:02}" for i in range(20)}, set())


def test_one_key_many_times_is_refused_in_linear_time() -> None:
    with pytest.raises(RailFileError, match="the key 'a' stands twice"):
        read_rails("{" + ",".join(['"a": 1'] * 200_000) + "}")
