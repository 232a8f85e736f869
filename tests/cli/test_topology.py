"""The topology commands: documents on standard output, what is open or wrong on standard error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.cli.topology import ImportFormat
from app.topology.importers import FORMATS
from tests.cli.support import refused, run
from tests.replicas.test_replicas import GOOD

DATA = Path(__file__).parents[1] / "data" / "topology"
NICS = DATA / "tabs-mlx5-names.txt"


@pytest.fixture
def put(tmp_path: Path) -> object:
    def write(name: str, content: object) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_an_imported_document_is_what_the_service_takes(client: TestClient) -> None:
    files = [DATA / "4gpu-4nic.txt"] * 2
    imported = run("topology", "import", *files, "--host", "a", "--host", "b", "--json")
    assert (imported.status, imported.err) == (0, "")
    replica = client.post("/replicas", json=GOOD).json()
    stored = client.put(replica["links"]["topology"], json=imported.document)
    assert stored.status_code == 200
    assert [(g["host"], g["device"], g["nic"]) for g in stored.json()["gpus"]][4:6] == [
        ("b", "GPU0", "NIC0"),
        ("b", "GPU1", "NIC1"),
    ]


def test_import_says_what_the_file_leaves_open() -> None:
    shown = run("topology", "import", NICS, "--format", "auto")
    assert shown.status == 0
    assert shown.out.splitlines()[:3] == [
        "rank  host    device  nic     rail  leaf  rack",
        "0     host-a  GPU0    -       -     -     -",
        "1     host-a  GPU1    mlx5_0  -     -     -",
    ]
    assert shown.err.splitlines() == [
        "faultsense: note: GPU0, GPU3: mlx5_0, mlx5_1 are equally near, so no NIC is stated; add it by hand",
        "faultsense: note: the file does not name its host: host-a is assumed",
    ]


def test_what_the_service_answers_can_be_read_again(client: TestClient, put) -> None:
    document = run("topology", "import", NICS, NICS, "--host", "a", "--host", "b", "--json").document
    replica = client.post("/replicas", json=GOOD).json()
    answer = client.put(replica["links"]["topology"], json=document).json()
    assert run("topology", "export", put("version.json", answer)).document == document
    assert (
        run("topology", "diff", put("version.json", answer), put("mine.json", document)).out == "nothing changed\n"
    )


def test_the_formats_are_those_of_the_importers() -> None:
    assert [form.value for form in ImportFormat] == ["auto", *FORMATS]


def test_what_cannot_be_read_is_a_line_or_a_problem_document(put, tmp_path: Path) -> None:
    cut = DATA / "cut-in-a-row.txt"
    words = f"{cut}: line 5, column 93: the file ends without the row of GPU4"
    refused(run("topology", "import", cut), words)
    outcome = run("topology", "import", cut, "--json")
    assert (outcome.status, outcome.out) == (2, "")
    problem = json.loads(outcome.err)
    assert (problem["code"], problem["detail"]) == ("unreadable_topology", words)
    assert problem["errors"] == [{"field": f"{cut}:5:93", "message": "the file ends without the row of GPU4"}]
    absent = run("topology", "import", tmp_path / "none.txt", "--json")
    assert (absent.status, json.loads(absent.err)["errors"][0]["field"]) == (2, str(tmp_path / "none.txt"))
    (tmp_path / "latin.csv").write_bytes(b"rank,host\n0,caf\xe9\n")
    refused(run("topology", "import", tmp_path / "latin.csv"), "line 2, column 6: not UTF-8")
    refused(run("topology", "import", tmp_path / "none.txt"), "No such file")
    refused(run("topology", "import", put("large.csv", "x" * (2**20 + 1))), "larger than")
    refused(run("topology", "import", put("text.txt", "hello")), "text.txt: line 1, column 1", *FORMATS)
    refused(run("topology", "import", NICS, cut, "--host", "a", "--host", "b"), f"{cut}: line 5")


def test_of_several_files_the_one_at_fault_is_named(put) -> None:
    files = [put(f"host-{n}.txt", NICS.read_text()) for n in range(3)]
    hosts = ("--host", "a", "--host", "a", "--host", "b")
    refused(run("topology", "import", *files, *hosts), f"{files[1]}: line 2, column 1: ", "a host has two GPUs")
    outcome = run("topology", "import", *files, *hosts, "--json")
    assert json.loads(outcome.err)["errors"][0]["field"] == f"{files[1]}:2:1"
    few = run("topology", "import", *files, "--host", "a", "--json")
    assert (few.status, json.loads(few.err)["errors"]) == (
        2,
        [{"field": "--host", "message": "3 files need 3 host names, not 1"}],
    )
    refused(run("topology", "import", *files, "--host", "a"), "faultsense: 3 files need 3 host names")


def test_a_rail_file_is_laid_onto_a_topology(put) -> None:
    table = "rank,host,nic\n0,a,mlx5_0\n1,a,mlx5_1\n2,b,mlx5_0\n3,b,mlx5_1\n"
    two, three = put("two.csv", table), put("three.csv", table + "4,c,mlx5_0\n")
    pairs = [{"local": "mlx5_0", "remote": "mlx5_1"}, {"local": "mlx5_1", "remote": "mlx5_0"}]
    rails = put("rails.json", {"all": pairs, "direct": pairs})
    laid = run("topology", "import", rails, "--onto", two, "--host", "a", "--json")
    assert [gpu["rail"] for gpu in laid.document["gpus"]] == ["mlx5_0", "mlx5_1", "mlx5_1", "mlx5_0"]
    named = run("topology", "import", rails, "--onto", three, "--host", "a", "--remote-host", "b", "--json")
    assert [gpu.get("rail") for gpu in named.document["gpus"]][3:] == ["mlx5_0", None]
    for words, said in (
        ((rails,), "lay it onto a topology"),
        ((rails, "--onto", two), "one --host"),
        ((rails, "--onto", three, "--host", "a"), "2 other hosts: say which one is remote"),
        ((rails, "--onto", two, "--host", "z", "--remote-host", "b"), "--host: the topology has no host 'z'"),
        ((rails, "--onto", two, "--host", "z"), "--host: the topology has no host 'z'; it has a, b"),
        (
            (rails, "--onto", two, "--host", "a", "--remote-host", "z"),
            "--remote-host: the topology has no host 'z'",
        ),
        ((rails, "--onto", put("twice.csv", table + "4,a,mlx5_9\n4,c,m\n"), "--host", "a"), "twice.csv: line 7"),
        (
            (put("other.json", {"all": [{"local": "x", "remote": "y"}]}), "--onto", two, "--host", "a"),
            "other.json: ",
        ),
        ((rails, "--onto", two, "--host", "a", "--format", "csv"), "goes with a TENT rail file"),
        ((two, "--remote-host", "b"), "--remote-host goes with --onto"),
        (
            (put("empty.json", ""), "--onto", two, "--host", "a"),
            "line 1, column 1: the rail file is empty",
        ),
    ):
        refused(run("topology", "import", *words), said)


def test_diff_says_it_in_words(put) -> None:
    old = put("old.csv", "rank,host,device,nic\n0,a,GPU-0,m0\n1,a,GPU-1,m1\n2,b,GPU-2,m0\n")
    new = put("new.csv", "rank,host,device,nic\n0,a,GPU-1,m1\n1,a,GPU-0,m0\n2,c,GPU-2,m9\n")
    assert run("topology", "diff", old, new).out.splitlines() == [
        "device GPU-1 is now rank 0 (was 1)",
        "device GPU-0 is now rank 1 (was 0)",
        "rank 2 (GPU-2) moved from b to c; NIC m0 replaced by m9",
    ]
    found = run("topology", "diff", old, new, "--json").document
    assert (found["ranks"], found["unchanged"]) == ([1, 0, 2], [0, 1])
    assert run("topology", "diff", old, old).out == "nothing changed\n"
    refused(run("topology", "diff", old, put("bad.csv", "rank,host\n0,a\nx,b\n")), "bad.csv: line 3, column 1")


def test_export(put) -> None:
    table = 'rank,host,nic,rail,leaf,rack,tier1\n0,a,m0,r0,l0,k,s\n1,a,,,,k,\n2,"b""x\\",m0,,l1,,s\n3,b,,,l0,,s\n'
    path = put("t.csv", table)
    document = run("topology", "export", path).document
    assert document == run("topology", "import", path, "--json").document
    graph = run("topology", "export", path, "--format", "node-link").document
    assert (graph["directed"], graph["multigraph"], graph["graph"]) == (False, False, {})
    ids = [node["id"] for node in graph["nodes"]]
    edges = {(edge["source"], edge["target"]) for edge in graph["edges"]}
    assert len(set(ids)) == len(ids)
    assert {end for edge in edges for end in edge} == set(ids)
    assert {"id": "nic:a/m0", "kind": "nic", "name": "m0", "host": "a", "rail": "r0"} in graph["nodes"]
    assert {"id": "host:a", "kind": "host", "name": "a", "rack": "k"} in graph["nodes"]
    assert {
        ("gpu:0", "nic:a/m0"),
        ("nic:a/m0", "switch:l0"),
        ("switch:l0", "switch:s"),
        ("gpu:3", "switch:l0"),
        ("host:a", "gpu:1"),
    } <= edges
    drawn = run("topology", "export", path, "--format", "dot").out
    assert drawn.startswith("graph topology {\n")
    assert drawn.endswith("}\n")
    assert '  subgraph "cluster_b\\"x\\\\" {\n    label="b\\"x\\\\";\n' in drawn
    assert '  "switch:l0" -- "switch:s";\n' in drawn
    assert drawn.count(" -- ") == len(edges)
