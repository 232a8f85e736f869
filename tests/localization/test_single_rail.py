"""Suspects whose accusers all came one way."""

from __future__ import annotations

import pytest

from app.localization.errors import EventError
from app.localization.events import dump_log, load_log, measured
from app.localization.session import Session
from app.localization.settings import Settings
from app.localization.single_rail import single_rail_notes
from app.localization.strategies.base import Suspect
from app.localization.verdict import Verdict


def suspect(*accusing: int) -> Suspect:
    return Suspect("gpu", [5], 1.8, False, 0.9, list(accusing), [], [])


def test_a_rail_that_alone_accuses_is_told_with_what_else_came_through_it() -> None:
    (note,) = single_rail_notes([suspect(1, 2)], {1: {3}, 2: {3}, 7: {3}, 8: {0}, 9: {0, 3}})
    assert (note.code, note.open) == ("single_rail", False)
    assert note.text.endswith("probe_endpoints[3] alone; 1 more came through it alone and accuse nothing")
    (note,) = single_rail_notes([suspect(1, 2)], {1: {3}, 2: {3}, 8: {0}})
    assert "no other did: if that front end is slow, it looks the same" in note.text


def test_nothing_is_said_of_several_rails_of_none_or_of_one_that_is_all_there_is() -> None:
    assert single_rail_notes([suspect(1, 2)], {1: {3}, 2: {4}}) == []
    assert single_rail_notes([suspect(1, 2)], {}) == []
    assert single_rail_notes([suspect()], {1: {3}}) == []


def _localized(rails: bool) -> tuple[Session, Verdict]:
    session = Session(Settings(gpus=6, strategy="pairwise", k=2, repeats=1))
    while not isinstance(probe := session.next(), Verdict):
        slow = set(probe.members) == {1, 4}
        extra = {"rails": [2] if slow else [0, 2]} if rails else {}
        event = measured(probe, tbt_ms=50.0 if slow else 10.0, ttft_ms=20.0, wall_ms=100.0, **extra)
        session.observe(load_log(dump_log([event]))[0])
    return session, probe


def test_a_verdict_says_so_and_without_rails_in_the_log_it_does_not() -> None:
    _, verdict = _localized(rails=True)
    assert verdict.names == ["path:1-4"]
    assert [reason["code"] for reason in verdict.reasons].count("single_rail") == 1
    _, verdict = _localized(rails=False)
    assert verdict.names == ["path:1-4"]
    assert "single_rail" not in {reason["code"] for reason in verdict.reasons}


def test_rails_that_are_none_are_refused_with_their_line() -> None:
    probe = Session(Settings(gpus=6, strategy="pairwise", k=2, repeats=1)).next()
    assert not isinstance(probe, Verdict)
    event = measured(probe, tbt_ms=5.0, ttft_ms=9.0, wall_ms=80.0, rails=["a"])
    with pytest.raises(EventError, match="line 1: rails must be a list"):
        load_log(dump_log([event]))
