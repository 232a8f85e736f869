"""`nvidia-smi topo -m`, as it is printed and as people paste it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.topology.errors import ImportRefused
from app.topology.importers import Imported, detect, read

DATA = Path(__file__).parents[1] / "data" / "topology"
ONE_NIC = (DATA / "pcie-8gpu-1nic.txt").read_text()
FOUR_NICS = (DATA / "4gpu-4nic.txt").read_text()
NAMES_AND_LEGEND = (DATA / "tabs-mlx5-names.txt").read_text()
NVSWITCH = (DATA / "8gpu-nvswitch-collapsed.txt").read_text()


def nics(imported: Imported) -> list[str | None]:
    return [place.nic for place in imported.placement.places]


def refused(text: str) -> ImportRefused:
    with pytest.raises(ImportRefused) as caught:
        read([text], "nvidia-smi")
    return caught.value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pcie-8gpu-1nic", ["NIC0"] * 8),  # the only NIC is the nearest one, near or not
        ("4gpu-4nic", ["NIC0", "NIC1", "NIC2", "NIC3"]),
        ("8gpu-nvswitch-collapsed", [None] * 8),
        ("aligned-nvlink-pairs", [None] * 4),
        ("tabs-mlx5-names", [None, "mlx5_0", "mlx5_1", None]),
        ("nvswitch-8gpu-9nic-rows-cut", [f"NIC{n}" for n in (8, 7, 6, 5, 4, 3, 2, 1)]),
    ],
)
def test_public_texts(name: str, expected: list[str | None]) -> None:
    text = (DATA / f"{name}.txt").read_text()
    assert detect(text) == "nvidia-smi"
    found = read([text], hosts=("node-7",))
    assert nics(found) == expected
    assert [place.device for place in found.placement.places] == [f"GPU{n}" for n in range(len(expected))]
    assert {place.host for place in found.placement.places} == {"node-7"}
    for field in ("rail", "leaf", "rack"):
        assert {getattr(place, field) for place in found.placement.places} == {None}


def test_what_is_left_open_is_said() -> None:
    assert read([NAMES_AND_LEGEND]).notes == (
        "GPU0, GPU3: mlx5_0, mlx5_1 are equally near, so no NIC is stated; add it by hand",
        "the file does not name its host: host-a is assumed",
    )
    cut = read([(DATA / "nvswitch-8gpu-9nic-rows-cut.txt").read_text()], hosts=("x",))
    assert cut.notes == ("the rows of NIC5, NIC6, NIC7, NIC8 are missing; the GPUs' rows say the same",)


def _collapsed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def _markdown(text: str) -> str:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    width = max(map(len, rows))
    lines = [f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in (["", *rows[0]], *rows[1:])]
    return "\n".join([lines[0], "|" + "---|" * width, *lines[1:]])


def _without_affinities(text: str) -> str:
    rows = [line.split() for line in text.splitlines()]
    return "\n".join(" ".join(row[: 9 - (index == 0)]) for index, row in enumerate(rows))


def _decorated(text: str) -> str:
    legend = "\n\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n  NIC1: mlx5_1\n  NIC2: mlx5_2\n  NIC3: mlx5_3\n"
    warning = "\ufeffWARNING: infoROM is corrupted at gpu 0000:1B:00.0\n$ nvidia-smi topo -m\n\n"
    head, _, rest = text.partition("\n")
    return f"{warning}\x1b[4m{head}\x1b[0m\n{rest}{legend}\nLegend:\n\n  X    = Self\n  SYS  = more\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join("\t".join(line.split()) for line in text.splitlines()),
        _collapsed,
        _markdown,
        _without_affinities,
        lambda text: text.replace("GPU NUMA ID", "").replace("CPU Affinity", ""),
        lambda text: text.replace("SYS", "SOC"),
    ],
)
def test_dialects_say_the_same(change: object) -> None:
    assert nics(read([change(FOUR_NICS)])) == ["NIC0", "NIC1", "NIC2", "NIC3"]  # type: ignore[operator]


def test_a_legend_names_the_nics_and_text_around_is_passed_over() -> None:
    text = _decorated(FOUR_NICS)
    assert detect(text) == "nvidia-smi"
    assert nics(read([text])) == ["mlx5_bond_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def test_the_nearest_nic_is_the_gpu_s_own() -> None:
    rows = {"GPU0": "X NV2 NODE SYS PHB", "GPU1": "NV2 X PXB PXB SYS"}
    lines = ["GPU0 GPU1 mlx5_0 mlx5_1 mlx5_2 NUMA Affinity", *(f"{gpu} {row} 0" for gpu, row in rows.items())]
    found = read(["\n".join(lines)], hosts=("a",))
    assert nics(found) == ["mlx5_2", None]
    assert "GPU1: mlx5_0, mlx5_1 are equally near, so no NIC is stated; add it by hand" in found.notes


def _line(text: str, number: int, change: object) -> str:
    lines = text.split("\n")
    lines[number - 1] = change(lines[number - 1])  # type: ignore[operator]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        (_line(FOUR_NICS, 3, lambda row: row[:36]), 3, 37, "the row of GPU1 ends before NIC0: the line is cut"),
        (_line(FOUR_NICS, 3, lambda row: row[:34]), 3, 33, "'NV' is no link"),
        (FOUR_NICS[: FOUR_NICS.index("GPU3    NV6")], 4, 105, "the file ends without the row of GPU3"),
        (_line(FOUR_NICS, 1, lambda row: row[:80]), 1, 73, "'CPU Affi' are no affinity columns"),
        (_line(FOUR_NICS, 1, lambda row: row[:60]), 2, 65, "more links than the header has columns"),
        (FOUR_NICS.replace("GPU2    NV6", "GPU1    NV6"), 4, 1, "GPU1 has two rows"),
        (FOUR_NICS + "\n" + FOUR_NICS.split("\n")[1], 11, 1, "GPU0 has two rows"),
        (FOUR_NICS + "\n" + FOUR_NICS, 11, 9, "a second table begins here"),
        (FOUR_NICS.replace("GPU3    NV6", "GPU9    NV6"), 5, 1, "the header has no GPU9"),
        (FOUR_NICS.replace("GPU1    GPU2", "GPU1    GPU1", 1), 1, 25, "GPU1 has two columns"),
        (
            _line(FOUR_NICS, 4, lambda row: row.replace("NV6", "PHB", 1)),
            4,
            9,
            "but line 2 says NV6 of GPU0 to GPU2",
        ),
        (
            _line(FOUR_NICS, 3, lambda row: row.replace("NV6      X ", "X        NV6")),
            3,
            9,
            "X stands where a row meets",
        ),
        (FOUR_NICS + "NIC Legend:\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n", 12, 1, "the legend does not name NIC2"),
        ("hello", 1, 1, "as the table of `nvidia-smi topo -m` does"),
        ("GPU0 CPU Affinity\nGPU0 X 0-7", 1, 1, "at least 2"),
    ],
)
def test_what_is_cut_or_mixed_is_named(text: str, line: int, column: int, words: str) -> None:
    found = refused(text)
    assert words in str(found)
    assert (found.line, found.column) == (line, column)


def test_a_public_text_that_was_cut() -> None:
    assert "the file ends without the row of GPU4" in str(refused((DATA / "cut-in-a-row.txt").read_text()))


@given(st.integers(0, len(ONE_NIC)))
def test_wherever_a_text_is_cut_it_is_whole_or_refused(end: int) -> None:
    """A cut may only lose what other rows say too: never another topology than the whole text's."""
    try:
        found = read([ONE_NIC[:end]], "nvidia-smi")
    except ImportRefused as refusal:
        assert refusal.line is not None
    else:
        assert found.placement == read([ONE_NIC]).placement


@given(st.text(alphabet="GPUNIC01X \t\n|PXBSYVL:", max_size=80))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    try:
        read([text], "nvidia-smi")
    except ImportRefused as refusal:
        assert refusal.line is not None
