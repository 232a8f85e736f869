"""Which format a text is."""

from app.analyses.readers.normalised import read_normalised
from app.analyses.records import Reading


def read(text: str, kind: str | None) -> Reading:
    return read_normalised(text)
