"""What `build` refuses before it imports torch or touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.probe_model.build import build
from app.probe_model.errors import ProbeModelError


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        ((1, 4, 2, 128), {}, "gpus"),
        ((4, 2, 4, 128), {}, "experts_per_gpu"),
        ((4, 4, 2, 100), {}, "hidden"),
        ((64, 4, 2, 128), {}, "hidden"),
        ((4, 4, 2, 128), {"intermediate": 200}, "intermediate"),
        ((4, 4, 2, 128), {"dtype": "int8"}, "dtype"),
        ((4, 4, 2, 128), {"seed": -1}, "seed"),
        ((4, 4, 2, 128), {"model": "a/b"}, "model"),
        ((1024, 8, 8, 8192), {}, "hidden"),  # 206 GB
    ],
)
def test_bad_arguments_are_named(
    tmp_path: Path, arguments: tuple[int, int, int, int], options: dict[str, object], field: str
) -> None:
    out = tmp_path / "model"
    with pytest.raises(ProbeModelError) as caught:
        build(*arguments, out, **options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert not out.exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ProbeModelError, match="not empty and not a probe model"):
        build(4, 4, 2, 128, tmp_path)
    # A manifest does not make other files ours.
    (tmp_path / "probe_manifest.json").write_text("{}")
    with pytest.raises(ProbeModelError, match="not empty and not a probe model"):
        build(4, 4, 2, 128, tmp_path)
    with pytest.raises(ProbeModelError, match="not a folder"):
        build(4, 4, 2, 128, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "precious"
