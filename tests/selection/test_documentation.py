"""The worked example of docs/selection.md is what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.support import ROOT, run
from tests.selection.support import RAILS, port

WORDS = 132_000_000


def test_the_worked_example_is_what_the_command_prints(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "selection.md").read_text(encoding="utf-8")
    shown = re.search(r'^    (\{"schema_version".*?\}\]\}\})$', page, re.MULTILINE | re.DOTALL)
    assert shown
    words = WORDS // 2
    files = {
        "records": " ".join(shown[1].split()),
        "rails": json.dumps(RAILS),
        "before": json.dumps(
            {
                "source": {"mlx5_0": port(), "mlx5_1": port()},
                "target": {"mlx5_4": port(), "mlx5_5": port(), "mlx5_7": port()},
            }
        ),
        "after": json.dumps(
            {
                "source": {f"mlx5_{i}": port(1000 + WORDS) for i in (0, 1)},
                "target": {
                    "mlx5_4": port(1000, 2000 + WORDS),
                    "mlx5_5": port(1000, 2000 + words),
                    "mlx5_7": port(1000, 2000 + words),
                },
            }
        ),
    }
    options: list[object] = ["--unit", "words4"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        options += [f"--{name}", tmp_path / name]
    said = run("selection", "judge", *options).out
    assert "".join(f"    {line}\n" for line in said.splitlines()) in page, said
