"""The worked example of docs/localization.md is a job that can be run again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs
from app.localization.adaptive.planner import Targets
from app.localization.events import Event
from app.localization.faults import parse_faults
from app.localization.physics import OwnNoise, PhysicsReplica
from app.localization.probes import Probe
from app.localization.settings import Settings
from app.localization.trials import run

PAGE = Path(__file__).parents[2] / "docs" / "localization.md"
SEED, SIGMA = 3, 0.03


class Recorded:
    """A replica that keeps its answers."""

    def __init__(self) -> None:
        noise = OwnNoise(SIGMA, np.random.default_rng(SEED))
        self._replica = PhysicsReplica(16, parse_faults(["path:3-12*3"], 16), Costs(), "serial", noise)
        self.ms: list[float] = []

    def answer(self, probe: Probe, number: int) -> Event:
        event = self._replica.answer(probe, number)
        self.ms.append(round(event.data["tbt_ms"], 1))
        return event


def test_the_worked_example_is_what_a_job_reads() -> None:
    told = Assumptions(Costs(sigma=SIGMA), Targets(path=3.0), "serial")
    replica = Recorded()
    session, verdict = run(Settings(gpus=16, k=2, strategy="adaptive", seed=SEED, adaptive=told), replica)
    assert verdict.names == ["path:3-12"]
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d[\d, -]* \| .*? \| ([\d.,* ]+) \| ", page, re.MULTILINE)
    shown = [float(value.strip("* ")) for row in rows for value in row.split(",")]
    assert shown == replica.ms
    assert f"{len(replica.ms)} readings of {len(session.strategy.record.probes)} probes" in page
