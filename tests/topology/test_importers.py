"""Mooncake, TENT and CSV files, and which format a file has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.localization.placement import Place, Placement, layout
from app.topology.errors import ImportRefused, UnknownFormat
from app.topology.importers import FORMATS, Format, detect, rails, read

NATIVE = {
    "nics": [{"name": f"mlx5_{n}", "pci_bus_id": f"0000:{n}a:00.0", "numa_node": n // 2} for n in range(4)],
    "mems": [
        {"name": "cpu:0", "numa_node": 0, "device_list": {"rank0": [0, 1], "rank1": [], "rank2": [2, 3]}},
        {"name": "cuda:1", "pci_bus_id": "", "device_list": {"rank0": [1], "rank1": [0], "rank2": [2, 3]}},
        {"name": "cuda:0", "pci_bus_id": "0000:1b:00.0", "device_list": {"rank0": [0], "rank2": [2, 3]}},
        {"name": "cuda:2", "type": 1, "device_list": {"rank0": [], "rank1": [2, 3]}},
        {"name": "cuda:10", "type": 1, "device_list": {"rank2": [3]}},
    ],
}
MATRIX = {
    "cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]],
    "cuda:1": [["mlx5_1"], ["mlx5_0", "mlx5_2"]],
    "cuda:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]],
    "hip:2": [[], ["mlx5_2"]],
}
RAILS = {
    "all": [
        {"local": "mlx5_0", "remote": "mlx5_1"},
        {"local": "mlx5_0", "remote": "mlx5_0"},
        {"local": "mlx5_1", "remote": "mlx5_0"},
    ],
    "direct": [{"local": "mlx5_0", "remote": "mlx5_1"}, {"local": "mlx5_1", "remote": "mlx5_0"}],
}
CSV = """\
Rank, Host ,device,nic,rail,leaf,rack,tier1,tier2
1,host-a,GPU-1,mlx5_1,1,leaf-1,r1,spine-0,core
0,host-a,GPU-0,mlx5_0,0,leaf-0,r1,spine-0,core

2,"host-b",GPU-2,,,leaf-2,,spine-1,core
3,host-b,GPU-3,,,,,,
"""
TWO = {"gpus": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]}
SAMPLES: dict[Format, str] = {
    "document": json.dumps(TWO),
    "nvidia-smi": "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n",
    "mooncake": json.dumps(NATIVE),
    "mooncake-matrix": json.dumps(MATRIX),
    "csv": CSV,
    "tent-rails": json.dumps(RAILS),
}


def refused(text: str, form: Format | None = None, hosts: tuple[str, ...] = ()) -> ImportRefused:
    with pytest.raises(ImportRefused) as caught:
        read([text], form, hosts)
    return caught.value


def pretty(document: Any) -> str:
    return json.dumps(document, indent=1)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_told_by_its_content(form: Format) -> None:
    assert detect(SAMPLES[form]) == form
    assert detect("\ufeff\n" + SAMPLES[form]) == form


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "[1, 2]",
        "{}",
        '{"gpus": [], "all": []}',
        "rank\n0\n",
        "a,b,c\n1,2,3\n",
        '{"x:y": [[], []]}',
        "r" * 2**18,
        'rank,"h',
    ],
)
def test_what_is_unknown_or_ambiguous_lists_the_formats(text: str) -> None:
    with pytest.raises(UnknownFormat) as caught:
        detect(text)
    assert all(form in str(caught.value) for form in FORMATS)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "empty"),
        (" \n", 1, 1, "empty"),
        ('{"gpus": [\n {"rank": 0,\n  "host": }]}', 3, 11, "not JSON"),
        ('{"gpus": [', 1, 11, "not JSON"),
        ('{"gpus": 1,\n "gpus": 2}', 2, 2, "'gpus' stands twice"),
        ('{"gpus": NaN}', 1, 1, "NaN is no number"),
        ('{"gpus": ' + "[" * 100_000 + "]" * 100_000 + "}", 1, 1, "nested too deeply"),
        ('{"gpus": ' + "9" * 5000 + "}", 1, 1, "not JSON"),
        (
            '{"gpus": [\n {"rank": 0, "host": "a"},\n {"rank": 1, "host": 7}]}',
            3,
            22,
            "gpus.1.host: Input should be",
        ),
        ('{"gpus": [],\n "shelf": 1}', 1, 10, "gpus: List should have at least 2 items"),
        ('{"gpus": [\n {"rank": 0, "host": "a"},\n {"rank": 1}]}', 3, 2, "gpus.1.host: Field required"),
        ('{"gpus": [\n {"rank": 0, "host": "a"},\n {"rank": 0, "host": "b"}]}', 3, 11, "every rank from 0 to 1"),
    ],
)
def test_broken_documents_are_pointed_at(text: str, line: int, column: int, words: str) -> None:
    found = refused(text)
    assert words in str(found)
    assert (found.line, found.column) == (line, column)


def test_mooncake_native() -> None:
    found = read([json.dumps(NATIVE)], hosts=("node-1",))
    assert found.placement.places == (
        Place("node-1", "0000:1b:00.0", "mlx5_0"),
        Place("node-1", "cuda:1", "mlx5_1"),
        Place("node-1", "cuda:2"),
        Place("node-1", "cuda:10", "mlx5_3"),
    )
    assert found.notes == ("cuda:2: mlx5_2, mlx5_3 are equally near, so no NIC is stated; add it by hand",)


def test_mooncake_priority_matrix() -> None:
    found = read([json.dumps(MATRIX)])
    assert [(p.device, p.nic) for p in found.placement.places] == [
        ("cuda:0", None),
        ("cuda:1", "mlx5_1"),
        ("hip:2", "mlx5_2"),
    ]
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    ("form", "text", "line", "column", "words"),
    [
        ("mooncake", '{"nics": []}', 1, 1, "'mems' is missing"),
        ("mooncake", '{"nics": {}, "mems": []}', 1, 10, "nics must be an array"),
        (
            "mooncake",
            '{"nics": [{"name": ""}], "mems": []}',
            1,
            20,
            "a NIC's name must be a string that is not empty",
        ),
        ("mooncake", '{"nics": [], "mems": [{"name": "cpu:0"}]}', 1, 1, "no GPU is in it"),
        ("mooncake", '{"nics": [], "mems": [{"name": "tape"}]}', 1, 32, "'tape' is no location"),
        ("mooncake", '{"nics": [], "mems": [\n{"name": "cuda:0"}]}', 2, 1, "'device_list' is missing"),
        (
            "mooncake",
            '{"nics": [{"name": "m"}], "mems": [\n{"name": "cuda:0", "device_list": {"rank0": [0, 1]}}]}',
            2,
            49,
            "1 is no NIC of the file: it has 1, from 0",
        ),
        (
            "mooncake",
            '{"nics": [], "mems": [{"name": "cuda:0", "device_list": {"near": []}}]}',
            1,
            66,
            "'near' is no nearness",
        ),
        ("mooncake-matrix", '{"cuda:0": [["m"]]}', 1, 12, "must be [[preferred NICs], [other NICs]]"),
        ("mooncake-matrix", '{"cuda:0": [["m"], "n"]}', 1, 20, "a list of NICs must be an array"),
        ("mooncake-matrix", '{"cuda:0": [["m"], [4]]}', 1, 21, "a NIC's name must be a string"),
        ("mooncake-matrix", '{"cuda:0": [[], []], "cuda": [[], []]}', 1, 30, "'cuda' is no location"),
        ("mooncake-matrix", '{"hip:0": [[], []],\n "rocm:0": [[], []]}', 2, 12, "'rocm:0' is the second GPU 0"),
        ("mooncake-matrix", '{"cpu:0": [["m"], []]}', 1, 1, "no GPU is in it"),
        ("mooncake-matrix", "[]", 1, 1, "a priority matrix must be an object"),
        ("mooncake-matrix", '{"cuda:0": [["m", "n", "m"], []]}', 1, 24, "the NIC 'm' stands twice in one list"),
        ("mooncake-matrix", '{"cpu:0": [["m"], ["n", "n"]]}', 1, 25, "the NIC 'n' stands twice in one list"),
        ("mooncake", '{"nics": [{"name": "m"},\n{"name": "m"}], "mems": []}', 2, 10, "'m' stands twice"),
        (
            "mooncake",
            '{"nics": [{"name": "m"}], "mems": [\n{"name": "cuda:0", "device_list": {"rank0": [0, 0]}}]}',
            2,
            49,
            "'m' stands twice in 'rank0'",
        ),
        ("mooncake-matrix", '{"cuda:0": [[], []]}', 1, 1, "at least 2"),
        ("tent-rails", json.dumps(RAILS), None, None, "a rail file names NICs, no GPUs"),
        ("csv", "rank\n0\n", 1, 1, "there is no column 'host'"),
        ("csv", "host,nic\na,b\n", 1, 1, "there is no column 'rank'"),
        ("csv", "rank,host,shelf\n", 1, 3, "unknown column 'shelf'"),
        ("csv", "rank,host,rank\n", 1, 3, "column 'rank' stands twice"),
        ("csv", "rank,host\n0,a\n1,b,c\n", 3, 3, "3 cells, the header has 2"),
        ("csv", "rank,host\n0,a\n1\n", 3, 2, "1 cells, the header has 2"),
        ("csv", "rank,host\n\n0,a\n-1,b\n", 4, 1, "rank '-1' is no number from 0"),
        ("csv", "rank,host\n0,a\n1, \n", 3, 2, "the host is empty"),
        ("csv", "rank,host\n0,a\n0,b\n", 3, 1, "every rank from 0 to 1 exactly once"),
        ("csv", "rank,host,device\n0,a,GPU-1\n1,b,GPU-1\n", 3, 3, "one GPU cannot be on two hosts"),
        ("csv", "device,rack,host,rank\nGPU-1,r,a,0\nGPU-2,s,a,1\n", 3, 2, "host a has rack 's' at rank 1"),
        ("csv", "host,rank\na,1\n\nb,1\n", 4, 2, "every rank from 0 to 1 exactly once"),
        ("csv", "host,rank,nic\na,0,m\nb,1,x\x07\n", 3, 3, "gpus.1.nic: must be printable"),
        ("csv", 'rank,host,nic\n0,"a",m\n1,"b\nb",m\n', 3, 2, "gpus.1.host: must be printable"),
        ("csv", 'rank,host\n0,"a\n', 2, 2, "not CSV"),
        ("csv", 'rank,host\n"0","a"\n1,"b"c\n', 3, 2, "not CSV"),
        ("csv", 'rank,host,nic\r\n0,"a\r\n""b",m\r\n1,b,"m\r\n', 4, 3, "not CSV"),
        ("csv", 'rank;host\n0;a"b\n1;"c', 3, 2, "not CSV"),
        ("csv", "rank,host\n0,a\n1," + "b" * 200_000, 3, 2, "not CSV: field larger than field limit"),
        ("csv", "rank,host,tier1\n", 1, 3, "above a column 'leaf'"),
        ("csv", "rank,host,leaf,tier1,tier3\n", 1, 5, "without gaps"),
        (
            "csv",
            "rank,host,leaf,tier1\n0,a,l,s\n1,b,l,t\n",
            3,
            4,
            "switch 'l' is under 't' here and under 's' before",
        ),
        ("csv", "rank,host,leaf,tier1\n0,a,,s\n", 2, 4, "'s' is above nothing"),
        ("csv", "rank,host,leaf,tier1\n0,a,,\n1,b,l,l\n", 3, 4, "switches are above one another: l -> l"),
        (
            "csv",
            "rank,host,leaf,tier1,tier2\n0,a,l,s,c\n1,b,m,c,s\n",
            2,
            5,
            "switches are above one another: s -> c -> s",
        ),
    ],
)
def test_what_is_wrong_is_pointed_at(
    form: Format, text: str, line: int | None, column: int | None, words: str
) -> None:
    found = refused(text, form)
    assert words in str(found)
    assert (found.line, found.column) == (line, column)


def test_csv() -> None:
    found = read([CSV]).placement
    assert found.places[:2] == tuple(
        Place("host-a", f"GPU-{n}", f"mlx5_{n}", str(n), f"leaf-{n}", "r1") for n in range(2)
    )
    assert found.places[3] == Place("host-b", "GPU-3")
    assert found.switches("leaf-2") == ("leaf-2", "spine-1", "core")
    for mark in (";", "\t"):
        assert read([CSV.replace(",", mark)]).placement == found
    assert read([CSV.replace("\n", "\r")]).placement == found
    assert read(["rank,nic\n0,m\n1,n\n"], hosts=("x",)).placement.hosts == (0, 0)


def test_a_host_that_the_file_names_itself_is_not_named_twice() -> None:
    assert "leave the host out" in str(refused(CSV, hosts=("x",)))
    assert "leave the host out" in str(refused(json.dumps(TWO), hosts=("x",)))


def test_one_file_a_host() -> None:
    found = read([SAMPLES["nvidia-smi"], SAMPLES["mooncake-matrix"]], hosts=("a", "b"))
    assert [place.host for place in found.placement.places] == ["a", "a", "b", "b", "b"]
    for texts, hosts, words in (
        ([SAMPLES["nvidia-smi"]] * 2, ("a", "a"), "a host has two GPUs"),
        ([SAMPLES["nvidia-smi"]] * 2, (), "name one for each"),
        ([SAMPLES["nvidia-smi"]] * 2, ("a",), "2 files need 2 host names, not 1"),
        ([SAMPLES["nvidia-smi"], CSV], ("a", "b"), "numbers its own ranks"),
    ):
        with pytest.raises(ImportRefused) as caught:
            read(texts, hosts=hosts)
        assert words in str(caught.value)


def test_of_several_files_the_one_at_fault_is_named() -> None:
    """Also where only the whole of them is wrong."""
    ours, theirs = SAMPLES["nvidia-smi"], SAMPLES["mooncake-matrix"]
    for texts, hosts, part, line in (
        ([ours, theirs, ours], ("a", "b", "a"), 2, 2),
        ([ours, ours, theirs], ("a", "a", "b"), 1, 2),
        ([ours, theirs + "}", ours], ("a", "b", "c"), 1, 1),
        ([ours, ours, theirs], ("a", "b", "\x07"), 2, 1),
        ([ours, ours], ("a",), None, None),
    ):
        with pytest.raises(ImportRefused) as caught:
            read(texts, hosts=hosts)
        assert (caught.value.part, caught.value.line) == (part, line)


def test_a_nic_may_be_near_and_far() -> None:
    """Some lists have every NIC in the second part."""
    found = read(['{"cuda:0": [["m"], ["m", "n"]], "cuda:1": [["n"], ["m", "n"]]}']).placement
    assert [place.nic for place in found.places] == ["m", "n"]


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_a_document_is_read_as_it_was_written(gpus: int) -> None:
    placement = Placement(layout(gpus, 2, leaves=2).places, {"0": "spine", "1": "spine"})
    assert read([json.dumps(placement.document())]).placement == placement


ONTO = Placement(
    tuple(Place(host, f"{host}-{n}", f"mlx5_{n % 2}") for host in ("a", "b", "c") for n in range(2)), {}
)


def laid(document: Any, onto: Placement = ONTO, local: str = "a", remote: str = "b") -> list[str | None]:
    return [place.rail for place in rails.lay(rails.parse(pretty(document)), onto, local, remote).places]


def test_direct_pairs_are_one_rail() -> None:
    assert laid(RAILS) == ["mlx5_0", "mlx5_1", "mlx5_1", "mlx5_0", None, None]


@pytest.mark.parametrize("document", [{"direct": RAILS["direct"]}, {"all": RAILS["direct"]}])
def test_either_list_may_stand_alone(document: Any) -> None:
    assert laid(document) == laid(RAILS)


def test_a_pair_may_say_more_than_is_needed() -> None:
    more = [{**pair, "weight": 1} for pair in RAILS["direct"]]
    assert laid({"all": more, "direct": more}) == laid(RAILS)


def test_a_rail_that_is_known_keeps_its_name() -> None:
    onto = rails.lay(rails.parse(json.dumps(RAILS)), ONTO, "a", "b")
    straight = {"all": [{"local": "mlx5_0", "remote": "mlx5_0"}, {"local": "mlx5_1", "remote": "mlx5_1"}]}
    assert laid(straight, onto, "b", "c") == ["mlx5_0", "mlx5_1", "mlx5_1", "mlx5_0", "mlx5_1", "mlx5_0"]
    with pytest.raises(ImportRefused, match="line 13, column 3: one rail here, but the topology has"):
        laid({"all": straight["all"], "direct": straight["all"]}, onto, "a", "b")


def test_a_rail_name_of_others_is_not_taken() -> None:
    onto = Placement((Place("a", nic="m"), Place("b", nic="m"), Place("c", nic="x", rail="m")))
    assert laid({"all": [{"local": "m", "remote": "m"}]}, onto) == ["a/m", "a/m", "m"]


@pytest.mark.parametrize(
    ("document", "line", "words"),
    [
        (
            {"all": [{"local": "mlx5_7", "remote": "mlx5_0"}]},
            3,
            "the local host has no NIC 'mlx5_7'; it has mlx5_0, mlx5_1",
        ),
        ({"all": [{"local": "mlx5_0", "remote": "x"}]}, 3, "the remote host has no NIC 'x'"),
        ({"all": []}, 2, "'all' must name at least one pair"),
        ({"direct": []}, 1, "'all' must name at least one pair"),
        ({}, 1, "'all' must name at least one pair"),
        ({"all": RAILS["all"], "some": []}, 16, "'some' is no part of a rail file"),
        ({"all": [{"local": "mlx5_0"}]}, 3, "a pair must have 'local' and 'remote'"),
        ({"all": [{"local": "mlx5_0", "remote": ""}]}, 5, "'remote' must be a string that is not empty"),
        ({"all": RAILS["all"][:1] * 2}, 7, "the pair mlx5_0 to mlx5_1 stands twice"),
        ({"all": RAILS["all"][:1], "direct": RAILS["all"][1:2]}, 9, "is not in 'all'"),
        ({"all": RAILS["all"], "direct": RAILS["all"][:2]}, 21, "mlx5_0 is direct to mlx5_1 and to mlx5_0"),
        ({"all": RAILS["all"]}, None, "does not say which NICs share a rail"),
    ],
)
def test_rail_files_that_upstream_would_ignore_are_refused(document: Any, line: int | None, words: str) -> None:
    with pytest.raises(ImportRefused) as caught:
        laid(document)
    assert words in str(caught.value)
    assert caught.value.line == line


def test_rail_files_without_content_or_hosts() -> None:
    for text in ("", " \n"):
        with pytest.raises(ImportRefused, match="the rail file is empty"):
            rails.parse(text)
    with pytest.raises(ImportRefused, match="the topology has no host 'z'; it has a, b, c"):
        laid(RAILS, remote="z")
    with pytest.raises(ImportRefused, match="the local and the remote host are both 'a'"):
        laid(RAILS, remote="a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "cuda:0", "mlx5_0", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["nics", "mems", "name", "device_list", "rank0", "cuda:0", "all"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(FORMATS))
def test_any_json_is_read_or_refused(document: Any, form: Format) -> None:
    try:
        read([json.dumps(document)], form)
    except ImportRefused as refusal:
        assert refusal.line is not None or form == "tent-rails"


@given(st.text(alphabet='rankhost,;\t\n"01 ', max_size=60), st.sampled_from(["csv", None]))
def test_any_text_is_read_or_refused(text: str, form: Format | None) -> None:
    try:
        read([text], form)
    except ImportRefused as refusal:
        assert refusal.line is not None
