"""Manifests without a model."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from app.probe_model.errors import ProbeModelError
from app.probe_model.synthetic import synthetic_manifest


@pytest.mark.parametrize("gpus", [2, 4, 64, 300, 1024])
def test_every_size_is_valid(gpus: int) -> None:
    manifest = synthetic_manifest(gpus)

    assert manifest.experts == 2 * gpus
    assert manifest.max_num_seqs >= gpus
    for rank, token in enumerate(manifest.gpu_tokens):
        assert manifest.receivers(token) == (rank,)
        expected = manifest.expected_logprobs(token)
        assert max(expected, key=expected.__getitem__) == token


def test_ideal_logprobs_follow_the_overlap() -> None:
    # 2 GPUs, 2 experts each: from token 2 = {0, 1} itself (logit 8), four patterns with one expert in common
    # (logit 4), and {2, 3}, two special and 56 padding ids (logit 0).
    manifest = synthetic_manifest(2)
    total = math.exp(8) + 4 * math.exp(4) + 59

    expected = manifest.expected_logprobs(2)
    assert expected == pytest.approx(
        {2: 8 - math.log(total), **{t: 4 - math.log(total) for t in (4, 5, 6, 7)}}, abs=1e-6
    )


def test_bad_arguments_are_named() -> None:
    for arguments, field in (
        ({"hidden": 100}, "hidden"),
        ({"hidden": 16384}, "hidden"),
        ({"top_k": 3}, "experts_per_gpu"),
        ({"dtype": "int8"}, "dtype"),
        ({"max_num_seqs": 9000}, "max_num_seqs"),
        ({"max_model_len": 1}, "max_model_len"),
    ):
        with pytest.raises(ProbeModelError) as caught:
            synthetic_manifest(4, **arguments)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(ProbeModelError, match="hidden: 128 is below the number of experts, 200"):
        synthetic_manifest(100, hidden=128)


def test_nothing_here_imports_torch() -> None:
    modules = "app.probe_model.synthetic, app.probe_model.serve, app.probe_model.build, app.probe_model.verify"
    subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; sys.exit('torch' in sys.modules)"], check=True, timeout=60
    )
