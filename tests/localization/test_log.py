"""The event log: replay equals the original, resuming continues it, and a damaged log is named as such."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.errors import EventError, SettingsError
from app.localization.events import Event, dump_log, failed, load_log, measured, timed_out
from app.localization.probes import Probe
from app.localization.replay import replay, replay_lines
from app.localization.session import MAX_FAILURES_IN_A_ROW, Session, resume
from app.localization.settings import Settings
from app.localization.verdict import Verdict
from tests.localization.conftest import Run, binary, drive


def log_of(run: Run) -> list[Event]:
    return [
        Event("settings", run.session.settings.to_dict()),
        *run.events,
        Event("verdict", {"verdict": run.verdict.to_dict()}),
    ]


def stored(events: list[Event]) -> list[str]:
    return list(dump_log(events))


@given(
    n=st.integers(4, 20),
    latencies=st.lists(st.floats(1, 500), min_size=1, max_size=40),
    repeats=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_replay_of_any_answers_is_identical(n: int, latencies: list[float], repeats: int, seed: int) -> None:
    """Whatever the replica answers, contradictions included, the log replays to the same probes and verdict."""
    session = Settings(gpus=n, k=max(2, n // 2), repeats=repeats, seed=seed, baseline="low_decile")

    def latency(probe: Probe) -> float:
        return latencies[(probe.number * 7 + probe.repeat + seed) % len(latencies)]

    run = drive(session, latency, deadline_ms=400)
    result = replay_lines(stored(log_of(run)))
    assert result.identical, result.divergence
    assert result.verdict == run.verdict.to_dict()
    assert len(run.probes) < 20 * n * n, "probes are bounded"


@given(cut=st.integers(0, 60))
@settings(max_examples=25, deadline=None)
def test_a_resumed_session_asks_for_the_same_probe(cut: int) -> None:
    session = Settings(gpus=16, k=4, repeats=2)
    run = drive(session, binary("gpu:3", "path:8-9"))
    cut = min(cut, len(run.events) - 1)
    again = resume(session, [*run.events[:cut], Event("resumed", {"attempt": 2})])
    upcoming = again.next()
    assert isinstance(upcoming, Probe)
    assert run.events[cut].answers(upcoming)
    for event in run.events[cut:]:
        again.observe(event)
    finished = again.next()
    assert isinstance(finished, Verdict)
    assert finished == run.verdict


def test_next_is_idempotent() -> None:
    session = Session(Settings(gpus=8, k=4))
    assert session.next() is session.next()


def test_order_of_repeats_does_not_matter() -> None:
    """The median of a probe's repeats is the same in any order."""
    values = {0: 19.0, 1: 21.0, 2: 60.0}
    verdicts = [
        drive(Settings(gpus=8, k=4, repeats=3), lambda p, o=order: values[o[p.repeat]]).verdict
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0])
    ]
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_replay_names_the_first_divergence() -> None:
    lines = stored(log_of(drive(Settings(gpus=8, k=4, repeats=1), binary("gpu:3"))))
    document = json.loads(lines[4])
    document["members"] = [0, 1, 2, 3] if document["members"] != [0, 1, 2, 3] else [4, 5, 6, 7]
    lines[4] = json.dumps(document)
    result = replay_lines(lines)
    assert not result.identical
    assert result.divergence is not None
    assert result.divergence["seq"] == 4
    assert result.divergence["logged"]["members"] != result.divergence["replayed"]["members"]


def test_replay_notices_another_latency_and_another_verdict() -> None:
    run = drive(Settings(gpus=8, k=4, repeats=1), binary("gpu:3"))
    lines = stored(log_of(run))
    faster = json.loads(lines[1]) | {"tbt_ms": 1.0}
    assert not replay_lines([lines[0], json.dumps(faster), *lines[2:]]).identical
    verdict = json.loads(lines[-1])
    verdict["verdict"]["suspects"][0]["members"] = [7]
    result = replay_lines([*lines[:-1], json.dumps(verdict)])
    assert not result.identical
    assert result.divergence is not None
    assert set(result.divergence["logged"]) == {"suspects"}


def test_replay_of_an_unfinished_log() -> None:
    run = drive(Settings(gpus=8, k=4, repeats=1), binary("gpu:3"))
    result = replay(log_of(run)[:4])
    assert not result.identical
    assert result.divergence is not None
    assert result.divergence["logged"] == "end of log"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "empty"),
        (["{"], "line 1: not JSON"),
        (["[]"], "line 1: not a JSON object"),
        (['{"seq": 0, "type": "guess"}'], "unknown event type"),
        (['{"seq": 1, "type": "settings"}'], "sequence number 1 where 0 is due"),
        (['{"seq": 0, "type": "measured", "number": 1}'], "repeat must be a whole number"),
        (['{"seq": 0, "type": "resumed"}'], "does not begin with its settings"),
    ],
)
def test_a_damaged_log_is_refused_with_its_place(lines: list[str], message: str) -> None:
    with pytest.raises(EventError, match=message):
        replay_lines(lines)


@pytest.mark.parametrize("value", [-1.0, "20", None, True])
def test_latencies_must_be_numbers(value: object) -> None:
    lines = stored(log_of(drive(Settings(gpus=8, k=4, repeats=1), binary())))
    lines[1] = json.dumps(json.loads(lines[1]) | {"ttft_ms": value})
    with pytest.raises(EventError, match="line 2: ttft_ms"):
        load_log(lines)


def test_nan_is_not_json_here() -> None:
    lines = stored(log_of(drive(Settings(gpus=8, k=4, repeats=1), binary())))
    lines[1] = lines[1].replace('"ttft_ms": 20.0', '"ttft_ms": NaN')
    with pytest.raises(EventError, match="line 2: ttft_ms"):
        load_log(lines)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpus": 1}, "gpus"),
        ({"k": 9}, "k"),
        ({"k": True}, "k"),
        ({"alpha": 1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"repeats": 0}, "repeats"),
        ({"aggregate": "mean"}, "aggregate"),
        ({"signal": "p99"}, "signal"),
        ({"hosts": [0, 1]}, "hosts"),
        ({"hosts": "abc"}, "hosts"),
        ({"history_ms": 0}, "history_ms"),
        ({"decode_tokens": 1}, "decode_tokens"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_name_the_field(change: dict, field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"gpus": 8, "k": 4, **change})
    assert caught.value.field == field


def test_settings_survive_json() -> None:
    original = Settings(gpus=8, k=4, hosts=(0, 0, 0, 0, 1, 1, 1, 1), history_ms=5.5, engine="0.32.0")
    assert Settings.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def answer(session: Session) -> Probe:
    probe = session.next()
    assert isinstance(probe, Probe)
    return probe


def test_a_hang_ends_with_the_set_in_flight() -> None:
    session = Session(Settings(gpus=8, k=4))
    session.observe(timed_out(answer(session), waited_ms=900, engine_alive=False, wall_ms=900, in_flight=[6]))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "inconclusive"
    assert verdict.reasons[0]["code"] == "engine_hung"
    assert "GPU 6 was under test" in verdict.reasons[0]["text"]


def test_a_hang_at_the_first_request_accuses_no_gpu() -> None:
    """Seen on a real server: one rank was silent from the start, and the first rank asked was not to blame."""
    session = Session(Settings(gpus=8, k=4))
    session.observe(timed_out(answer(session), waited_ms=900, engine_alive=False, wall_ms=900, in_flight=[0]))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert verdict.reasons[0]["code"] == "engine_hung"
    assert "it may be any of them" in verdict.reasons[0]["text"]


def test_a_refused_rank_is_localized() -> None:
    session = Session(Settings(gpus=8, k=4))
    session.observe(failed(answer(session), code="rank_refused", detail="refused", rank=6))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.names) == ("localized", ["gpu:6"])
    assert verdict.suspects[0].slowdown is None


def test_overload_is_tried_again_and_then_said() -> None:
    session = Session(Settings(gpus=8, k=4))
    first = answer(session)
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        session.observe(failed(first, code="overloaded", detail="busy"))
        assert session.next() == first
    session.observe(measured(first, tbt_ms=20.0, ttft_ms=20.0, wall_ms=20.0))
    second = answer(session)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        session.observe(failed(second, code="overloaded", detail="busy"))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.reasons[0]["code"]) == ("inconclusive", "overloaded")


@pytest.mark.parametrize("event", ["deadline", "cancelled"])
def test_cut_short_keeps_what_was_found(event: str) -> None:
    settings = Settings(gpus=16, k=4, repeats=1)
    whole = drive(settings, binary("gpu:3", "path:8-9"))
    accused_after = next(
        i for i in range(len(whole.events)) if resume(settings, whole.events[: i + 1]).strategy.evidence.findings
    )
    session = resume(settings, whole.events[: accused_after + 1])
    session.observe(Event(event))  # type: ignore[arg-type]
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.names) == ("localized", ["gpu:3"])
    assert event in {r["code"] for r in verdict.reasons}
    assert any(name.startswith("path:8-9") for name in verdict.untested)


def test_cut_short_at_once_is_inconclusive_and_tested_nothing() -> None:
    session = Session(Settings(gpus=16, k=4))
    session.observe(Event("deadline"))
    verdict = session.next()
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "inconclusive"
    assert verdict.untested == ["gpu:*", "path:*-*"]


def test_answers_to_another_probe_are_refused() -> None:
    session = Session(Settings(gpus=8, k=4))
    probe = answer(session)
    with pytest.raises(EventError, match="pending is 1"):
        session.observe(measured(probe.again(1), tbt_ms=1.0, ttft_ms=1.0, wall_ms=1.0))
    session.observe(Event("cancelled"))
    with pytest.raises(EventError, match="after the verdict"):
        session.observe(measured(probe, tbt_ms=1.0, ttft_ms=1.0, wall_ms=1.0))


def test_progress_never_goes_back_and_ends_full() -> None:
    session = Session(Settings(gpus=16, k=4, repeats=2))
    latency, done = binary("gpu:3"), 0
    while isinstance(probe := session.next(), Probe):
        now, planned = session.progress
        assert done <= now < planned
        assert session.phase == probe.phase
        done = now
        ms = latency(probe)
        session.observe(measured(probe, tbt_ms=ms, ttft_ms=ms, wall_ms=ms))
    assert session.progress[0] == session.progress[1]
    assert session.phase is None
