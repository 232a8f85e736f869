"""Alembic environment: the URL comes from the caller, the tables from the features' models."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine

import app.jobs.models
import app.kit.auth
import app.replicas.models
import app.topology.models
import app.webhooks.models  # noqa: F401
from app.kit.db import Base


def run() -> None:
    """Migrate inside one transaction: a migration that fails leaves nothing behind."""
    engine = create_engine(context.config.attributes["url"])
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
