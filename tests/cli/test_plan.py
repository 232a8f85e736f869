"""``faultsense plan localize``: what a sweep costs and certifies."""

from __future__ import annotations

import pytest

from tests.cli.support import refused, run

PLAN = ("plan", "localize", "--n", 300, "--hosts", 38, "--target-path", 3, "--target-gpu", 1.5, "--sigma", 0.05)


def test_contract() -> None:
    result = run(*PLAN, "--transport", "serial", "--json")
    assert (result.status, result.err) == (0, "")
    document = result.document
    assert (document["strategy"], document["r"], document["tokens"], document["repeats"]) == (
        "adaptive",
        2,
        956,
        1,
    )
    assert (document["probes_healthy"], document["path_units"]) == (81, 75 * 300 * 956)
    assert document["seconds_healthy"] == pytest.approx(75 * 0.04 + 12 * 0.04, rel=0.01)
    assert document["detectable"] == {"path": 2.964, "gpu": 1.358, "delay_ms": 10.478}
    assert document["reachable"] is True


def test_where_the_transport_is_not_known_the_worse_one_counts() -> None:
    unknown, serial, shared = (
        run(*PLAN, "--transport", t, "--json").document for t in ("unknown", "serial", "shared")
    )
    assert unknown == run(*PLAN, "--json").document
    of_each = unknown.pop("by_transport")
    assert of_each.keys() == {"serial", "shared"}
    assert shared.pop("by_transport") == {"shared": of_each["shared"]}
    assert unknown == shared
    assert of_each["serial"]["path"] <= of_each["shared"]["path"] == unknown["detectable"]["path"]
    assert serial["by_transport"].keys() == {"serial"}


def test_where_a_rank_has_many_receivers_the_transports_differ() -> None:
    of_each = run(*PLAN, "--target-path", 40, "--json").document["by_transport"]
    assert of_each["serial"]["path"] < of_each["shared"]["path"]


def test_in_words() -> None:
    words = run(*PLAN, "--transport", "serial").out
    assert words.startswith("81 probes certify 300 GPUs and 44850 paths: every rank sends 956 tokens a step to 2")
    assert "GPUs from 1.358x, paths from 2.964x, added delays from 10.478 ms" in words
    assert "out of reach" not in words
    assert "the targets are out of reach" in run(*PLAN, "--sigma", 0.5).out
    assert "paths from none" in run(*PLAN, "--path-ms", 0).out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--transport", "magic"), "--transport must be serial, shared or unknown"),
        (("--n", 1), "n: 1 GPUs"),
        (("--hosts", 301), "hosts: must be 1 to 300"),
        (("--sigma", "nan"), "sigma: must be"),
        (("--target-path", 1), "target_path: must be above 1"),
        (("--target-delay", 0), "target_delay: must be above 0"),
        (("--max-tokens", 0), "max_tokens: must be at least 1"),
    ],
)
def test_bad_input_is_named(wrong: tuple[object, ...], named: str) -> None:
    refused(run(*PLAN, *wrong), named)
