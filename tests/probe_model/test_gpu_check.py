"""The one-run measurement: its JSON on the CPU, its counters with a device's stood in, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest

from scripts import gpu_check

SMALL = [
    *("--hidden", "128", "--intermediate", "128", "--heads", "2"),
    *("--experts", "8", "--top-k", "2", "--vocabulary", "256", "--repeats", "3", "--device", "cpu"),
]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(SMALL) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "gpu_check: torch is missing: pip install 'faultsense[torch]'\n")


@pytest.mark.parametrize(
    "options", [["--tokens", "0"], ["--tokens", "1,x"], ["--ep", ""], ["--repeats", "0"], ["--dtype", "int8"]]
)
def test_bad_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_check.main([*SMALL, *options])
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.vllm
@needs_torch
def test_one_json_object_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([*SMALL, "--ep", "1,4", "--tokens", "1,16"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["device"]["kind"] == "cpu"
    assert found["layer"]["num_experts"] == 8
    alone, quarter = found["ep"]
    assert ((alone["ep"], alone["experts"]), (quarter["ep"], quarter["experts"])) == ((1, 8), (4, 2))
    assert alone["bytes"]["sharded"]["computed"] == 8 * 3 * 128 * 128 * 2
    assert quarter["bytes"]["sharded"]["computed"] * 4 == alone["bytes"]["sharded"]["computed"]
    for entry in found["ep"]:
        assert {part["measured"] for part in entry["bytes"].values()} == {None}
        assert [times["tokens"] for times in entry["forward_ms"]] == [1, 16]
        for times in entry["forward_ms"]:
            assert 0 < times["lowest"] <= times["median"] <= times["highest"] < math.inf


@pytest.mark.vllm
@needs_torch
@pytest.mark.parametrize("tied", [[], ["--dtype", "float32"]])
def test_what_is_computed_is_what_is_loaded(tied: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's counter, stood in for by the sizes of what was moved."""
    moved: list[int] = []

    class Counter:
        def __init__(self, device: Any) -> None:
            pass

        def grown(self) -> int:
            return moved.pop()

        def start_peak(self) -> None:
            assert not moved

        def peak(self) -> int:
            return 77

    import torch

    def to(self: Any, device: Any) -> Any:
        moved.append(sum(tensor.nbytes for tensor in self.parameters()))
        return self

    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr(gpu_check, "_Memory", Counter)
    (entry,) = gpu_check.check(gpu_check._parse([*SMALL, *tied, "--tokens", "4"]))["ep"]
    for part in ("replicated", "sharded"):
        assert entry["bytes"][part]["measured"] == entry["bytes"][part]["computed"] > 0
    assert entry["bytes"]["runtime"]["measured"] == 77


@pytest.mark.vllm
@needs_torch
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ep", "8"], "ep: leaves a GPU 1 of 8 experts"),
        (["--top-k", "9"], "num_experts_per_tok must be at most num_experts"),
        (["--heads", "0"], "num_attention_heads: Input should be greater"),
        (["--model", "nowhere"], "model: decides the sizes"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main([*SMALL, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
