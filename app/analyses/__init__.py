"""Verdicts from measurements made elsewhere: matrices, pairs, lists, counters. Pure: text in, answer out."""

from app.analyses.analyze import analyze
from app.analyses.errors import UnreadableInput
from app.analyses.records import Analysis, Reason, Suspect
from app.analyses.topology import Topology

__all__ = ["Analysis", "Reason", "Suspect", "Topology", "UnreadableInput", "analyze"]
