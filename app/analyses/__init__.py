"""Verdicts from measurements made elsewhere: matrices, pairs, lists, counters. Pure: text in, answer out."""

from app.analyses.analyze import analyze
from app.analyses.errors import UnreadableInput
from app.analyses.records import Analysis, Reason, Suspect
from app.analyses.topology import parse_topology

__all__ = ["Analysis", "Reason", "Suspect", "UnreadableInput", "analyze", "parse_topology"]
