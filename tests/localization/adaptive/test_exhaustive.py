"""Noise-free, every set of up to two faults: exact wherever it can be told, else no accusation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs, Transport
from app.localization.binary import HEALTHY_MS
from app.localization.components import Component
from app.localization.expectation import expected_names
from app.localization.trials import run_binary
from tests.localization.adaptive.sessions import (
    TOLD,
    adaptive,
    check_confirmed,
    fault_sets,
    noise_free,
    slowdowns,
)

# Sets that no reading can tell, by the number of GPUs: what the verdict names of them, and leaves untested.
NOT_IDENTIFIABLE = {
    2: {
        "path:0-1": ([], ["path:0-1"]),  # the only path
        "gpu:0 gpu:1": ([], ["path:0-1"]),  # all that there is
    },
    3: {  # the last path between GPUs that are not slow
        "gpu:0 path:1-2": (["gpu:0"], ["path:1-2"]),
        "gpu:1 path:0-2": (["gpu:1"], ["path:0-2"]),
        "gpu:2 path:0-1": (["gpu:2"], ["path:0-1"]),
    },
}
TRUSTED = Assumptions(
    Costs(fixed_ms=HEALTHY_MS, compute_ms=0.0, path_ms=0.0, sigma=0.0), transport="undiluted", trusted=True
)


def differences(n: int, told: Assumptions, transport: Transport) -> Iterator[tuple[str, list[str], list[str]]]:
    """Sets whose verdict is not exact, with the names and what is untested."""
    for faults in fault_sets(n, 2):
        run = noise_free(adaptive(n, told), faults, transport)
        check_confirmed(run)
        exact = sorted(run.verdict.names) == expected_names(slowdowns(faults))
        if not exact:
            yield " ".join(map(str, faults)), run.verdict.names, run.verdict.untested


@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("n", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_pair_of_faults(n: int, told: str, transport: Transport) -> None:
    found = {name: (names, untested) for name, names, untested in differences(n, TOLD[told], transport)}
    assert found == NOT_IDENTIFIABLE.get(n, {})


# Calibrating takes most of the time of a small job: the two largest sizes are told the costs.
LARGER = [(n, told) for n in (5, 6, 7, 8) for told in TOLD] + [(n, "costs given") for n in (9, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["serial", "shared"])
@pytest.mark.parametrize(("n", "told"), LARGER)
def test_every_pair_of_faults_of_a_larger_replica(n: int, told: str, transport: Transport) -> None:
    assert list(differences(n, TOLD[told], transport)) == []


@pytest.mark.parametrize("n", [5, 6, 7])
def test_every_fault_alone(n: int) -> None:
    for transport in ("serial", "shared"):
        for faults in fault_sets(n, 1):
            run = noise_free(adaptive(n), faults, transport)  # type: ignore[arg-type]
            assert run.verdict.names == [str(faults[0])]
            check_confirmed(run)


def binary_names(n: int, faults: tuple[Component, ...], slowdown: float) -> list[str]:
    _, verdict = run_binary(adaptive(n, TRUSTED), faults, noise=0, slowdown=slowdown, seed=(1,))
    return verdict.names


@pytest.mark.parametrize("slowdown", [1.5, 3.0])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_every_pair_of_faults_in_the_binary_model(n: int, slowdown: float) -> None:
    """What a step takes is known, so even the last path is judged."""
    wrong = [
        (list(map(str, faults)), names)
        for faults in fault_sets(n, 2 if n < 6 else 1)
        if sorted(names := binary_names(n, faults, slowdown)) != expected_names(slowdowns(faults))
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 7, 8])
def test_every_pair_of_faults_in_the_binary_model_of_the_other_sizes(n: int) -> None:
    wrong = [
        (list(map(str, faults)), names)
        for faults in fault_sets(n, 2)
        if sorted(names := binary_names(n, faults, 1.5)) != expected_names(slowdowns(faults))
    ]
    assert not wrong


@pytest.mark.parametrize("n", [2, 3, 8, 64, 300])
def test_a_healthy_replica_takes_one_probe_where_its_costs_are_trusted(n: int) -> None:
    session, verdict = run_binary(adaptive(n, TRUSTED), [], noise=0, slowdown=2, seed=(1,))
    assert (verdict.outcome, session.done, verdict.cost["probes"]) == ("healthy", 1, 1)
