"""The localization benchmark: a tiny run of what measures, and the tables and pictures of a small document."""

import json
import re
import sys
from dataclasses import replace
from itertools import product

import pytest

from scripts import bench
from scripts.benchmarks.localize import _computed, experiment, localize
from scripts.benchmarks.localize_cells import (
    CONTENDERS,
    Cell,
    Contender,
    Design,
    Plan,
    Target,
    available,
    best_alpha,
    cells,
    clique_design,
    clique_effect,
    clique_ms,
    clique_tokens,
)
from scripts.benchmarks.localize_report import report

# One worker, so that what these tests read is measured once.
pytestmark = pytest.mark.xdist_group("bench-localize")

WEAK, STRONG = Target(3.0, 1.5), Target(10.0, 2.0)
PAPER = (Contender("pairwise", 2, "pairwise"), Contender("faultsense", 4, "paper, k = 4"))
TINY = Plan(
    PAPER,
    sizes=(8, 12),
    trials3=2,
    trials4={8: 3},
    faults4=(1, 2),
    noise_gpus=12,
    noise_trials=2,
    noise_cases=(("serial", "unknown"),),
    sigmas=(0.02,),
    costs={8: 2},
    targets=(WEAK,),
)


@pytest.fixture(scope="module")
def measured():
    return localize(TINY, processes=1)


def test_a_tiny_run_measures_what_is_known(measured):
    rows = measured["figure3"]["rows"]
    assert [(r["strategy"], r["n"], r["phase1"]) for r in rows] == [
        ("pairwise", 8, 28),
        ("pairwise", 12, 66),
        ("faultsense-4", 8, 6),
        ("faultsense-4", 12, 13),
    ]
    assert all(row["exact"]["count"] == row["exact"]["of"] == 2 for row in rows)
    assert rows[0]["exact"]["interval"] == pytest.approx([0.025**0.5, 1.0]), "Clopper-Pearson of 2 of 2"
    assert measured["figure3"]["minimum"][0] == {"n": 8, "k": 4, "probes": 6, "best_known": 6}
    assert len(measured["figure4"]["rows"]) == 2 * 3 * 2
    assert {row["kind"] for row in measured["figure4"]["rows"]} == {"gpu", "path", "mixed"}
    assert measured["trials"] == sum(cell.trials for cell in cells(TINY))


def test_trials_of_a_cell_do_not_depend_on_the_rest_of_the_plan_or_on_processes(measured):
    alone = localize(replace(TINY, sizes=(12,), trials4={}, sigmas=(), costs={}), processes=2)
    assert alone["figure3"]["rows"] == [row for row in measured["figure3"]["rows"] if row["n"] == 12]


def test_a_mean_has_students_interval_and_a_single_trial_none(measured):
    row = next(r for r in measured["costs"]["rows"] if r["n"] == 8 and r["strategy"] == "faultsense-4")
    low, high = row["seconds"]["interval"]
    assert 0 <= low < row["seconds"]["mean"] < high
    single = localize(Plan(PAPER[:1], sizes=(8,), trials3=1, trials4={}, sigmas=(), costs={}), processes=1)
    assert single["figure3"]["rows"][0]["probes"]["interval"] is None


def test_costs_that_are_out_of_reach_or_too_long_have_no_trials(measured):
    rows = {(r["strategy"], r["n"], r["transport"], r["faults"]): r for r in measured["costs"]["rows"]}
    beyond = rows["faultsense-4", 8, "shared", 0]
    assert (beyond["reachable"], beyond["trials"]) == (False, 0)
    assert ("faultsense-4", 8, "shared", 1) not in rows
    large = localize(Plan(PAPER[:1], sizes=(), trials4={}, sigmas=(), costs={101: 2}), processes=1)["costs"][
        "rows"
    ]
    assert {(r["reachable"], r["trials"], r["faults"], r["probes"]["mean"]) for r in large} == {(True, 0, 0, 5050)}


@pytest.mark.parametrize("transport", ["serial", "shared"])
def test_what_is_computed_of_a_healthy_sweep_is_what_a_trial_takes(transport):
    cell = Cell("costs", PAPER[0], 10, 0, "mixed", 1, 7, transport, "own", 0.0, STRONG, Design(3, 1.2))
    trial, computed = experiment(cell).trial(0), _computed(cell)
    assert trial.measurements == computed["measurements"]["mean"] == 45 * 3
    assert trial.path_units == computed["path_units"]["mean"]
    assert trial.seconds == pytest.approx(computed["seconds"]["mean"], abs=1e-3)


def test_probes_of_the_paper_reach_a_target_with_the_repeats_that_the_design_states():
    """t0 = 20 ms, a = 5/512 and b = 5/448 ms a token; a rank works as long as t0: 956 tokens, 239 to each of 4."""
    assert clique_tokens(4) == 239
    healthy = 20 + 239 * (4 * 5 / 512 + 3 * 5 / 448)
    assert clique_ms(4, "serial") == pytest.approx(healthy)
    # a path slower by 3 adds 2 x 239 of its tokens; a GPU slower by 1.5 half of 4 x 239: the GPU shows less
    assert clique_ms(4, "serial", "path:0-1*3") == pytest.approx(healthy + 2 * 239 * 5 / 448)
    assert clique_effect(4, WEAK, "serial") == pytest.approx(0.11784, abs=1e-4)
    # (2 x 2.3263 x 0.05 / 0.1178)^2 = 3.90 readings in the mean, pi / 2 times as many for a median: 6.1
    assert clique_design(4, WEAK, "serial", 0.05).repeats == 7
    assert clique_design(4, WEAK, "serial", 0.05).alpha == pytest.approx(1.0607, abs=1e-4)
    assert clique_design(4, WEAK, "serial", 0.001).repeats == 3, "one burst in three readings does no harm"
    assert clique_design(8, WEAK, "serial", 0.05) is None, "19 repeats and more"
    # three messages that flow side by side hide one that takes three times as long
    assert clique_effect(4, WEAK, "shared") == pytest.approx(0, abs=1e-12)
    assert clique_design(4, WEAK, "shared", 0.05) is None
    assert best_alpha(4, WEAK, "shared") == Design(3, 1.3)


def test_strategies_compete_once_they_exist(monkeypatch):
    from app.localization import strategies

    monkeypatch.setitem(strategies.STRATEGIES, "adaptive", strategies.FaultSense)
    assert available() == CONTENDERS
    monkeypatch.delitem(strategies.STRATEGIES, "adaptive")
    assert [each.id for each in available()] == ["pairwise", "faultsense-4", "faultsense-8"]


def mean(value, spread=None):
    ends = None if spread is None else [value - spread, value + spread]
    return {"mean": value, "interval": ends, "p95": 2 * value}


def rate(count, of, low, high):
    return {"count": count, "of": of, "rate": count / of, "interval": [low, high]}


def row(strategy, n, probes, **more):
    return {
        "strategy": strategy,
        "n": n,
        "faults": 1,
        "kind": "mixed",
        "trials": 10,
        "seed": 5,
        "reachable": True,
        "phase1": probes - 5.5,
        "phase2": 5.5,
        "probes": mean(probes, 1),
        "measurements": mean(3 * probes, 2),
        "path_units": mean(1_234_567.0, 1000),
        "seconds": mean(12.34),
        "exact": rate(9, 10, 0.555, 0.997),
        "false_accusation": rate(0, 10, 0.0, 0.308),
        "miss": rate(1, 10, 0.003, 0.445),
        **more,
    }


def document():
    """Results of three strategies that nobody measured."""
    ids = {"pairwise": 40, "faultsense-4": 20, "faultsense-8": 10, "adaptive": 6}
    physics = {"transport": "serial", "family": "own", "path_slowdown": 3.0, "gpu_slowdown": 1.5}
    lost = {"strategy": "faultsense-8", "n": 16, "faults": 0, "kind": "mixed", "trials": 0, "seed": 5}
    return {
        "strategies": [{"id": name, "label": name.upper(), "strategy": name, "k": 4} for name in ids],
        "trials": 123,
        "elapsed_s": 240.0,
        "figure3": {
            "faults": 1,
            "kind": "mixed",
            "rows": [row(name, n, probes * n) for name, probes in ids.items() for n in (25, 50)],
            "minimum": [
                {"n": n, "k": k, "probes": 100 * n // k, "best_known": 101 * n // k}
                for k in (4, 8)
                for n in (25, 50)
            ],
        },
        "figure4": {
            "rows": [
                row(name, 16, probes * d, faults=d, kind=kind)
                for name, probes in ids.items()
                for kind, d in product(("gpu", "path", "mixed"), (1, 2))
            ]
        },
        "noise": {
            "rows": [
                row(name, 16, probes, faults=d, sigma=sigma, **physics)
                for name, probes in ids.items()
                for sigma, d in product((0.02, 0.2), (0, 1))
            ]
        },
        "costs": {
            "rows": [
                row("pairwise", 16, 40, sigma=0.05, repeats=7, alpha=1.0607, **physics),
                row("adaptive", 16, 6, sigma=0.05, **physics | {"transport": "shared"}),
                {**lost, **physics, "sigma": 0.05, "reachable": False},
            ]
        },
    }


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    return folder, report(json.loads(json.dumps(document())), folder)


def test_the_page_shows_every_row_with_trials_seed_and_intervals(rendered):
    folder, _ = rendered
    page = (folder / "localize.md").read_text(encoding="utf-8")
    exact = "9/10 [0.555, 0.997]"
    lines = [
        f"| 25 | ADAPTIVE | 144 | 5.5 | 150 [149, 151] | {exact} | 10, 5 |",
        "| 50 | 1,225 | 1,250 | 1,262 | 625 | 631 |",
        f"| 16 | 1 GPU | PAIRWISE | 34.5 | 5.5 | 40 [39, 41] | 80 | {exact} | 0/10 [0.000, 0.308] | 10, 5 |",
        f"| path 3x, GPU 1.5x | serial | own | 0.02 | 1 | ADAPTIVE | {exact} | 0/10 [0.000, 0.308] "
        "| 1/10 [0.003, 0.445] | 18 [16, 20] | 10, 5 |",
        "| path 3x, GPU 1.5x | 16 | serial | 1 | PAIRWISE | 7, 1.061 | 40 [39, 41] | 120 [118, 122] "
        f"| 1,234,567 [1,233,567, 1,235,567] | 12.3 | {exact} | 0/10 [0.000, 0.308] | 10, 5 |",
        "| path 3x, GPU 1.5x | 16 | serial | any | FAULTSENSE-8 |  " + "| out of reach " * 4 + "|  |  |  |",
    ]
    for line in lines:
        assert line in page.splitlines()
    assert "123 simulated jobs, 4 minutes" in page
    data = [line for line in page.splitlines() if line.startswith("|") and "---" not in line]
    tables = 5
    assert len(data) == tables + 8 + 2 + 24 + 16 + 3


def test_every_picture_is_there_as_png_and_svg_and_the_page_shows_it(rendered):
    folder, files = rendered
    names = {"localize-probes", "localize-faults-16", "localize-noise", "localize-costs"}
    expected = {f"{name}{end}" for name in names for end in (".png", ".svg")} | {"localize.md"}
    assert {path.name for path in files} == {path.name for path in folder.iterdir()} == expected
    shown = re.findall(r"\]\((.*?)\)", (folder / "localize.md").read_text(encoding="utf-8"))
    assert set(shown) == {f"{name}.svg" for name in names}
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    probes = (folder / "localize-probes.svg").read_text(encoding="utf-8")
    for text in ("n, GPUs", "minimum, k = 8", "ADAPTIVE", "(b) k = 4, 1 fault of either kind"):
        assert f">{text}<" in probes
    costs = (folder / "localize-costs.svg").read_text(encoding="utf-8")
    assert ">path-units, millions of tokens x paths<" in costs


def test_the_same_results_give_the_same_bytes_whatever_the_users_own_settings(rendered, tmp_path):
    import matplotlib as mpl

    folder, files = rendered
    with mpl.rc_context({"xtick.labelsize": 30.0, "axes.edgecolor": "red"}):
        report(document(), tmp_path)
    for path in files:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    assert not any("dc:date" in path.read_text(encoding="utf-8") for path in folder.glob("*.svg"))


def test_the_command_reports_a_file_without_measuring(monkeypatch, tmp_path, capsys):
    source = tmp_path / "localize.json"
    source.write_text(json.dumps({"machine": {}, "localize": {"strategies": ["these"]}}))
    monkeypatch.setattr(bench, "report", lambda results, folder: [folder / results["strategies"][0]])
    monkeypatch.setattr(bench, "BY_NAME", {"localize": None, "shapes_vllm": None})
    monkeypatch.setattr(sys, "argv", ["bench.py", "localize", "--from", str(source)])
    bench.main()
    assert capsys.readouterr().out.strip().endswith("docs/benchmarks/these")
    monkeypatch.setattr(sys, "argv", ["bench.py", "cover", "--from", str(source)])
    with pytest.raises(SystemExit):
        bench.main()
    assert "--from is for localize" in capsys.readouterr().err
