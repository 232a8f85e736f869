"""Benchmarks: what the service costs, as JSON and a table. Ratios and medians: machines are shared and noisy.

python scripts/bench.py all            the quick ones, JSON into bench/all.json
python scripts/bench.py cover|skew|overhead|memory|memory_slope|api|store|selection [--out FILE]
python scripts/bench.py localize       a quarter of an hour on two cores; tables and pictures into docs/benchmarks
python scripts/bench.py shared         slow NICs, uplinks, leaves ..., half an hour; a table into docs/benchmarks
python scripts/bench.py shared_http    the same by jobs over HTTP on an emulated replica, SHARED_JOBS (10) a kind
python scripts/bench.py localize --from bench/localize.json    the tables and pictures of that file
VLLM_VENV=... python scripts/bench.py shapes_vllm    probe shapes on a real vLLM server, a quarter of an hour
VLLM_VENV=... [VLLM_RANKS=8] python scripts/bench.py localize_vllm    both strategies there, half an hour
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.api import api  # noqa: E402
from scripts.benchmarks.common import Result  # noqa: E402
from scripts.benchmarks.cover import cover  # noqa: E402
from scripts.benchmarks.localize import localize  # noqa: E402
from scripts.benchmarks.localize_report import report  # noqa: E402
from scripts.benchmarks.localize_vllm import localize_vllm  # noqa: E402
from scripts.benchmarks.localize_vllm import page as page_of_vllm  # noqa: E402
from scripts.benchmarks.memory import memory, memory_slope  # noqa: E402
from scripts.benchmarks.overhead import overhead  # noqa: E402
from scripts.benchmarks.selection import selection  # noqa: E402
from scripts.benchmarks.shapes_vllm import shapes_vllm  # noqa: E402
from scripts.benchmarks.shared import page as page_of_shared  # noqa: E402
from scripts.benchmarks.shared import shared  # noqa: E402
from scripts.benchmarks.shared_http import shared_http  # noqa: E402
from scripts.benchmarks.skew import skew  # noqa: E402
from scripts.benchmarks.store import store  # noqa: E402

BENCHMARKS: dict[str, Callable[[], Result]] = {
    function.__name__: function
    for function in (cover, skew, overhead, memory, memory_slope, api, store, selection)
}
# Run by name only: they take long, write into the documentation, or need an environment of their own.
BY_NAME: dict[str, Callable[[], Result]] = {
    function.__name__: function for function in (localize, localize_vllm, shapes_vllm, shared, shared_http)
}
PAGES = ROOT / "docs" / "benchmarks"


def main() -> None:
    """Run benchmarks, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=[*BENCHMARKS, *BY_NAME, "all"])
    parser.add_argument("--out", type=Path, help="file for the JSON; default: bench/NAME.json")
    parser.add_argument(
        "--from", dest="source", type=Path, help="JSON of localize: measure nothing, only report it"
    )
    arguments = parser.parse_args()
    if arguments.source:
        if arguments.benchmark != "localize":
            parser.error("--from is for localize")
        _report(json.loads(arguments.source.read_text(encoding="utf-8"))["localize"])
        return
    names = list(BENCHMARKS) if arguments.benchmark == "all" else [arguments.benchmark]
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    results: Result = {"machine": machine}
    for name in names:
        results[name] = (BENCHMARKS | BY_NAME)[name]()
        for place, value in _flat(results[name], name) if name != "localize" else ():  # that has a page of tables
            print(f"{place:60} {value}", flush=True)
    out = arguments.out or ROOT / "bench" / f"{arguments.benchmark}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "localize" in results:
        _report(results["localize"])
    if "localize_vllm" in results:
        found = results["localize_vllm"]
        _write(f"localize-vllm-{found['ranks']}.md", page_of_vllm(found))
    if "shared" in results:
        _write("shared.md", page_of_shared(results["shared"]))


def _write(name: str, text: str) -> None:
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text(text, encoding="utf-8")
    print(PAGES / name)


def _report(results: Result) -> None:
    for path in report(results, PAGES):
        print(path)


def _flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every figure with its place."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{place}.{name}")
    else:
        yield place, value


if __name__ == "__main__":
    main()
