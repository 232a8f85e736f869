"""What a job with probes of k GPUs cannot see, whatever it measures."""

from __future__ import annotations

from app.localization.settings import Settings
from app.localization.strategies.base import Note

SMALL_HOP_CLASS = Note(
    "small_hop_class",
    "too few probes stayed inside one host to have a baseline of their own; they were judged by the slower kind,"
    " which is less sensitive",
    open=False,
)


def nothing_to_compare(settings: Settings) -> Note:
    """One probe holds all GPUs."""
    advice = f"choose k of at most {settings.gpus // 2}" if settings.gpus > 3 else "too few GPUs"
    return Note(
        "nothing_to_compare",
        f"one probe of {settings.k} GPUs holds all of them and has no other to be compared with: {advice}",
    )


def two_could_hide(settings: Settings) -> Note:
    """Every probe leaves out one GPU only."""
    return Note(
        "two_faults_could_hide",
        f"with probes of {settings.k} among {settings.gpus} GPUs, two slow GPUs together would slow every probe"
        " and look like a healthy replica",
        open=False,
    )
