"""A verdict from a text: measurements made elsewhere, or the log of one of our own jobs."""

from __future__ import annotations

from typing import Any

from app.analyses import Analysis, Reason, Suspect, Topology, UnreadableInput
from app.analyses import analyze as analyze_text
from app.localization.errors import LocalizationError
from app.localization.replay import replay_lines

JOB_LOG = "job-log"


def analyze(text: str, *, topology: Topology | None = None, kind: str | None = None) -> Analysis:
    """Judge measurements that somebody else made, or replay a job's log.

    Parameters
    ----------
    text : str
        What they have.
    topology : Topology or None
        Where the ranks sit, where it is known; a log brings its own.
    kind : str or None
        The format, instead of detecting it.

    Raises
    ------
    UnreadableInput
        When it cannot be read without guessing; it names the line or field.
    """
    if kind == JOB_LOG or (kind is None and _looks_like_a_log(text)):
        return _replayed(text)
    return analyze_text(text, topology=topology, kind=kind)


def _looks_like_a_log(text: str) -> bool:
    first = text[:4096].partition("\n")[0]
    return first.startswith("{") and '"settings"' in first and '"seq"' in first


def _replayed(text: str) -> Analysis:
    try:
        replayed = replay_lines(text.splitlines())
    except (LocalizationError, RecursionError) as error:
        raise UnreadableInput("broken_log", str(error)) from None
    if replayed.verdict is None:
        at = (replayed.divergence or {}).get("seq")
        raise UnreadableInput(
            "broken_log", f"the log diverges from its own settings: {replayed.divergence}", f"event {at}"
        )
    verdict = replayed.verdict
    reasons = [Reason(reason["code"], reason["text"]) for reason in verdict["reasons"]]
    return Analysis(JOB_LOG, verdict["outcome"], [_suspect(said) for said in verdict["suspects"]], reasons)


def _suspect(said: dict[str, Any]) -> Suspect:
    name = f"{said['kind']} {'-'.join(map(str, said['members']))}"
    return Suspect(said["kind"], said["members"], said["slowdown"], name)
