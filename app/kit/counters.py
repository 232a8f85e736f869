"""Counters that several processes share and that survive them: rows of PostgreSQL, read by /metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sqlalchemy import Double, String, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.kit.db import Base

Count: TypeAlias = tuple[str, Mapping[str, str], float]

_ADD = text(
    """
    INSERT INTO counters (name, labels, value) VALUES (:name, CAST(:labels AS jsonb), :value)
    ON CONFLICT (name, labels) DO UPDATE SET value = counters.value + EXCLUDED.value
    """
)


class Counter(Base):
    """A number that only grows. Labels have few values: never an id."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    labels: Mapped[dict[str, str]] = mapped_column(JSONB, primary_key=True)
    value: Mapped[float] = mapped_column(Double)


def add(db: Session, counts: Sequence[Count]) -> None:
    """Add to counters.

    Rows are taken in one order everywhere, and each once: transactions that add to the same counters wait for
    each other and never deadlock.
    """
    sums: dict[tuple[str, str], float] = {}
    for name, labels, value in counts:
        key = (name, json.dumps(dict(labels), sort_keys=True))
        sums[key] = sums.get(key, 0.0) + value
    for key in sorted(sums):
        db.execute(_ADD, {"name": key[0], "labels": key[1], "value": sums[key]})


def read(db: Session) -> list[Count]:
    """All counters."""
    rows = db.execute(select(Counter.name, Counter.labels, Counter.value))
    return [(row.name, row.labels, row.value) for row in rows]
