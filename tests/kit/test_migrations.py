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


def test_back_and_forth_on_data_revives_no_key(empty: str) -> None:
    """Down to the first version and up again: jobs, events and keys stay; a key that had expired stays dead."""
    migrate.upgrade(empty)
    engine = create_engine(empty, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text(
                """
                INSERT INTO replicas (id, name, gpus, document) VALUES (gen_random_uuid(), 'r', 8, '{}');
                INSERT INTO jobs (id, replica_id, state, done, planned, attempt, cancel_requested, request,
                                  settings, deadline_at)
                SELECT gen_random_uuid(), id, 'succeeded', 1, 1, 1, false, '{}', '{}', now() FROM replicas;
                INSERT INTO events (job_id, seq, type, attempt, data) SELECT id, 0, 'settings', 1, '{}' FROM jobs;
                INSERT INTO api_keys (id, name, digest, scopes, expires_at) VALUES
                    (gen_random_uuid(), 'expired', 'a', '{read}', now() - interval '1 h'),
                    (gen_random_uuid(), 'lasting', 'b', '{read}', NULL);
                """
            )
        )
    migrate.downgrade(empty, "0001")
    migrate.upgrade(empty)
    with engine.connect() as connection:
        alive = connection.execute(text("SELECT name FROM api_keys WHERE revoked_at IS NULL")).scalars().all()
        counts = [connection.execute(text(f"SELECT count(*) FROM {t}")).scalar() for t in ("jobs", "events")]
    assert alive == ["lasting"]
    assert counts == [1, 1]
