"""Migrations go up and down on data, and end at the tables that the models describe."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

import app.main  # noqa: F401  every table
from app.embedded import EmbeddedServices
from app.kit import migrate
from app.kit.db import Base


@pytest.fixture
def empty(services: EmbeddedServices) -> Iterator[str]:
    """A database without tables."""
    name = f"empty_{uuid.uuid4().hex[:8]}"
    yield services.create_database(name)
    services.drop_database(name)


def test_the_head_is_what_the_models_say(empty: str) -> None:
    migrate.upgrade(empty)
    engine = create_engine(empty, poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_down_and_up_again_on_data(empty: str) -> None:
    migrate.upgrade(empty)
    engine = create_engine(empty, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO replicas (id, name, gpus, document) VALUES (gen_random_uuid(), 'r', 8, '{}')")
        )
    migrate.upgrade(empty)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM replicas")).scalar() == 1
    migrate.downgrade(empty, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    migrate.upgrade(empty)
    assert "jobs" in inspect(engine).get_table_names()
