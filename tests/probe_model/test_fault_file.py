"""The plugin's fault file; its module needs neither torch nor vLLM."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from scripts.vllm_cpu_ep.vllm_cpu_ep.faults import (
    NO_FAULTS,
    FaultFile,
    FaultFileError,
    parse_faults,
)


def write(path: Path, content: str) -> None:
    """Replace a file the way the server helper does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


def test_delays_by_gpu_and_direction() -> None:
    faults = parse_faults(
        {"gpu:2": {"ms": 200}, "path:1-3": {"ms": 30}, "path:0>2": {"ms": 1, "ms_per_1000_rows": 50}}
    )

    assert faults.gpu_seconds(2, 1) == 0.2
    assert faults.gpu_seconds(1, 1) == 0.0
    assert faults.path_seconds(1, 3, 5) == faults.path_seconds(3, 1, 5) == 0.03
    assert faults.path_seconds(0, 2, 100) == pytest.approx(0.006)
    assert faults.path_seconds(2, 0, 100) == 0.0


def test_a_threshold_spares_the_dummy_token_of_an_idle_rank() -> None:
    faults = parse_faults({"gpu:2": {"ms": 200, "ms_per_1000_rows": 1000, "above_rows": 2}})

    assert faults.gpu_seconds(2, 2) == 0.0
    assert faults.gpu_seconds(2, 3) == pytest.approx(0.203)


def test_no_rows_no_delay_and_a_cap() -> None:
    faults = parse_faults({"gpu:0": {"ms": 60_000, "ms_per_1000_rows": 60_000}})

    assert faults.gpu_seconds(0, 0) == 0.0
    assert faults.gpu_seconds(0, 10**6) == 60.0


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"gpu": {"ms": 1}},
        {"gpu:-1": {"ms": 1}},
        {"gpu:1\n": {"ms": 1}},
        {"gpu:٣": {"ms": 1}},
        {"path:1-1": {"ms": 1}},
        {"path:1": {"ms": 1}},
        {"gpu:1": 5},
        {"gpu:1": {}},
        {"gpu:1": {"seconds": 5}},
        {"gpu:1": {"above_rows": 2}},
        {"gpu:1": {"ms": 1, "above_rows": 1.5}},
        {"gpu:1": {"ms": -1}},
        {"gpu:1": {"ms": True}},
        {"gpu:1": {"ms": "5"}},
        {"gpu:1": {"ms": float("nan")}},
        {"gpu:1": {"ms": 60_001}},
        {"path:1-3": {"ms": 1}, "path:3>1": {"ms": 2}},
        {"path:1-3": {"ms": 1}, "path:3-1": {"ms": 1}},
    ],
)
def test_a_bad_document_is_refused(document: Any) -> None:
    with pytest.raises(FaultFileError):
        parse_faults(document)


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    faults = FaultFile(path)
    assert faults.current() is NO_FAULTS

    write(path, json.dumps({"gpu:1": {"ms": 5}}))
    assert faults.current().gpu_seconds(1, 1) == 0.005
    assert faults.current() is faults.current()
    # Same size and, as on coarse file systems, the same time: a renamed file is another file all the same.
    before = path.stat()
    write(path, json.dumps({"gpu:1": {"ms": 7}}))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert faults.current().gpu_seconds(1, 1) == 0.007
    path.unlink()
    assert faults.current() is NO_FAULTS


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"gpu:1": {"ms": -1}}', " " * 70_000])
def test_a_broken_file_keeps_the_last_faults_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "faults.json"
    faults = FaultFile(path)
    write(path, json.dumps({"gpu:1": {"ms": 5}}))
    good = faults.current()

    write(path, content)
    with caplog.at_level(logging.WARNING):
        assert faults.current() is good
        assert faults.current() is good
    assert [record.message[:40] for record in caplog.records] == ["fault file not usable, keeping the last "]
    write(path, "{}")
    assert faults.current() == NO_FAULTS


def test_without_a_file_there_are_no_faults() -> None:
    assert FaultFile(None).current() is NO_FAULTS
