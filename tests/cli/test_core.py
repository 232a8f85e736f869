"""plan, simulate, replay, openapi: no service needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import ROOT, log_lines, refused, run


def test_version_and_help() -> None:
    assert run("--version").out.startswith("faultsense ")
    listed = run("--help").out
    for command in ("up", "serve", "worker", "demo", "emulate", "plan", "simulate", "replay", "localize", "jobs"):
        assert f" {command} " in listed


def test_plan_cover_contract() -> None:
    result = run("plan", "cover", "--n", 300, "--k", 8, "--json")
    assert result.status == 0
    assert result.err == ""
    document = result.document
    seconds = document.pop("seconds")
    assert isinstance(seconds, float)
    assert document == {
        "n": 300,
        "k": 8,
        "probes": 1641,
        "lower_bound": 1613,
        "ratio": round(1641 / 1613, 4),
        "method": "transversal",
        "greedy_probes": 1951,
        "pairwise": 44850,
    }


def test_plan_cover_in_words() -> None:
    words = run("plan", "cover", "--n", 64, "--k", 8).out
    assert words.startswith("72 probes of 8 cover 64 GPUs and 2016 paths (affine, ")
    assert "Algorithm 1 takes 88; lower bound (Schonheim) 72, ratio 1.0; one probe a pair would be 2016" in words
    assert "the first 8 probes touch every GPU" in words


SIMULATE = ("simulate", "--n", 16, "--k", 4, "--trials", 20)
SIMULATED = [
    *(
        f"{rate}{end}"
        for rate in ("exact_rate", "false_accusation_rate", "miss_rate")
        for end in ("", "_interval")
    ),
    *("false_suspects_per_trial", "missed_per_trial"),
    *("measurements_mean", "measurements_mean_interval", "measurements_p95", "path_units_mean", "seconds_mean"),
    *("probes", "pairwise"),
]


@pytest.mark.parametrize("kind", ["gpu", "path", "mixed"])
def test_simulate_contract(kind: str) -> None:
    result = run(*SIMULATE, "--strategy", "faultsense", "--faults", 1, "--kind", kind, "--noise", 0, "--json")
    assert result.status == 0
    document = result.document
    assert list(document) == SIMULATED
    assert list(document["probes"]) == ["phase1", "phase2", "total_mean", "total_p95"]
    assert (document["exact_rate"], document["false_suspects_per_trial"], document["missed_per_trial"]) == (
        1,
        0,
        0,
    )
    assert document["pairwise"] == 120
    assert document["probes"]["total_mean"] < 120


@pytest.mark.parametrize("transport", ["serial", "shared"])
def test_simulate_in_physics(transport: str) -> None:
    physics = ("--model", "physics", "--transport", transport, "--noise", 0.01, "--noise-family", "unknown")
    strong = ("--gpu-slowdown", 9, "--path-slowdown", 90, "--faults", 1, "--kind", "mixed")
    result = run(*SIMULATE, *physics, *strong, "--json")
    assert (result.status, result.err) == (0, "")
    document = result.document
    assert list(document) == SIMULATED
    assert document["miss_rate"] == 0
    assert document["measurements_mean"] > document["probes"]["total_mean"]
    low, high = document["measurements_mean_interval"]
    assert low < document["measurements_mean"] < high
    words = run(*SIMULATE, "--model", "physics", "--transport", transport).out
    assert "exact in 0.0 % of 20 trials (1 mixed fault(s), seed 1); 95 % interval 0.0 to 16.8 %" in words
    assert "missed faults in 100.0 % of trials; 95 % interval 83.2 to 100.0 %" in words
    assert "measurements: mean 20.0 (95 % below 20), 57360 path-units and" in words


def test_simulate_takes_given_faults_in_physics() -> None:
    given = ("--model", "physics", "--fault", "all*2", "--history", "--json")
    assert run(*SIMULATE, *given).document["outcomes"] == {"uniform_slowdown": 20}
    refused(run(*SIMULATE, "--model", "physics", "--fault", "gpu:3!hang"), "gpu:3!hang", "physics model")


def test_simulate_comes_from_its_seed_alone() -> None:
    noisy = (*SIMULATE, "--faults", 2, "--noise", 0.3, "--json")
    first, again, other = (run(*noisy, "--seed", seed).document for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_simulate_in_words_and_by_pairs() -> None:
    words = run(*SIMULATE, "--strategy", "pairwise").out
    assert "exact in 100.0 % of 20 trials (1 mixed fault(s), seed 1)" in words
    assert "120 to cover" in words


def test_simulate_takes_given_faults() -> None:
    document = run(*SIMULATE, "--fault", "gpu:5*2.0", "--fault", "path:3-9+20ms", "--json").document
    assert document["faults"] == ["gpu:5*2", "path:3-9+20ms"]
    assert document["expected"] == ["gpu:5", "path:3-9"]
    assert document["named"] == {"gpu:5": 20, "path:3-9": 20}
    assert (document["exact_rate"], document["outcomes"]) == (1, {"localized": 20})


def test_simulate_is_plain_about_shared_parts() -> None:
    given = (*SIMULATE, "--trials", 1, "--hosts", 4)
    words = run(*given, "--fault", "fabric:host-a*3").out
    assert "exact in 0.0 % of 1 trials (fabric:host-a*3, seed 1)" in words
    assert "paths named in place of a shared part that slows them: 6.0 a trial" in words
    assert "outcomes and reasons: localized 1" in words
    nic = run(*given, "--fault", "nic:host-a/0*3", "--json").document
    assert (nic["expected"], nic["named"], nic["false_suspects_per_trial"]) == (["nic:host-a/0"], {"gpu:0": 1}, 1)
    large = ("simulate", "--trials", 1, "--fault", "fabric:host-a*3", "--json")
    assert run(*large, "--hide-topology").document["reasons"] == {"topology_needed": 1}
    assert run(*large).document["symptoms_per_trial"] == 28
    uniform = run("simulate", "--trials", 1, "--fault", "leaf:1*3", "--history", "--json").document
    assert uniform["outcomes"] == {"uniform_slowdown": 1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--fault", "nic:host-z/0*3"), "it has host-a/0, host-a/1"),
        (("--fault", "gpu:16*2"), "ranks go from 0 to 15"),
        (("--fault", "gpu:5"), "nic:host-a/0*3"),
        (("--fault", "gpu:5*2", "--faults", 2), "--faults is only for random faults"),
        (("--fault", "gpu:5*2", "--slowdown", 2), "--slowdown is only for random faults"),
        (("--hosts", 2), "--hosts is only for --fault"),
        (("--history",), "--history is only for --fault"),
        (("--fault", "gpu:5*2", "--hosts", 17), "hosts: must be 1 to 16"),
        (("--fault", "gpu:5*2", "--path-slowdown", 3), "--path-slowdown is only for random faults"),
        (("--model", "chemistry"), "model: must be binary or physics"),
        (("--model", "physics", "--slowdown", 3), "give --gpu-slowdown or --path-slowdown"),
        (("--model", "physics", "--transport", "undiluted"), "transport: must be serial or shared"),
        (("--noise-family", "unknown"), "noise_family: the binary model has its own"),
        (("--gpu-slowdown", 0.5), "gpu_slowdown: must be from 1"),
        (("--strategy", "adaptive", "--k", 17), "k: must be a whole number from 2 to 16"),
    ],
)
def test_simulate_refuses(words: tuple[object, ...], expected: str) -> None:
    refused(run(*SIMULATE, *words), expected)


def test_replay_of_a_log_is_identical(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    path.write_text("\n".join(log_lines()) + "\n")
    result = run("replay", path, "--json")
    assert result.status == 0
    assert list(result.document) == ["identical", "verdict"]
    assert result.document["identical"] is True
    assert [s["members"] for s in result.document["verdict"]["suspects"]] == [[3]]
    assert run("replay", path).out == f"identical: {result.document['verdict']['summary']}\n"


def test_replay_names_the_first_divergence(tmp_path: Path) -> None:
    lines = log_lines()
    event = json.loads(lines[2])
    event["members"] = sorted({(rank + 1) % 8 for rank in event["members"]})
    path = tmp_path / "job.jsonl"
    path.write_text("\n".join([*lines[:2], json.dumps(event), *lines[3:]]))
    result = run("replay", path, "--json")
    assert result.status == 1
    assert result.document["identical"] is False
    assert result.document["divergence"]["seq"] == 2
    assert result.document["divergence"]["logged"]["members"] == event["members"]
    words = run("replay", path)
    assert words.status == 1
    assert words.out.startswith('diverges: {"seq": 2')


def test_replay_of_a_log_that_ends_early_diverges(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    path.write_text("\n".join(log_lines()[:3]))
    result = run("replay", path, "--json")
    assert result.status == 1
    assert result.document["divergence"]["logged"] == "end of log"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "the log is empty"),
        (b"\n \n", "the log is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "decode"),
        ("\n".join(log_lines()).encode()[:-40], "not JSON"),
        ("\n".join(log_lines()[1:]).encode(), "sequence number 1 where 0 is due"),
        (log_lines()[0].replace('"gpus": 8', '"gpus": 1').encode(), "gpus"),
        (log_lines()[0].replace('"k": 4', '"k": "4"').encode(), "k"),
        (b'{"seq": 0, "type": "settings"}', "gpus"),
        (b"[" * 100_000, "recursion"),
        (b"7", "not a JSON object"),
    ],
    ids=[
        "missing",
        "empty",
        "blank",
        "binary",
        "truncated",
        "headless",
        "small",
        "typed",
        "bare",
        "deep",
        "number",
    ],
)
def test_replay_refuses_what_is_no_log(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "job.jsonl"
    if content is not None:
        path.write_bytes(content)
    refused(run("replay", path), words)
    refused(run("replay", path, "--json"), words)


def test_openapi_is_checked_in() -> None:
    assert run("openapi", "--out", ROOT / "openapi/openapi.json", "--check").status == 0


def test_openapi_check_fails_on_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "openapi.json"
    missing = run("openapi", "--out", path, "--check")
    assert missing.status == 1
    assert "make openapi" in missing.err
    assert not path.exists()
    assert run("openapi", "--out", path).status == 0
    assert run("openapi", "--out", path, "--check").status == 0
    assert path.read_text() == run("openapi").out
    path.write_text(path.read_text().replace("localize", "localise"))
    assert run("openapi", "--out", path, "--check").status == 1
    assert "localise" in path.read_text(), "a check must not repair what it checks"


def test_openapi_refuses_files_it_cannot_use(tmp_path: Path) -> None:
    refused(run("openapi", "--check"), "--out")
    refused(run("openapi", "--out", tmp_path), "Is a directory")
    refused(run("openapi", "--out", tmp_path / "no/where.json"), "No such file")
