"""Alembic environment: the URL comes from the caller, the names of constraints from the models' base.

Migrations are written by hand, so the models themselves are not needed.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine

from app.kit.db import Base


def run() -> None:
    """Migrate inside one transaction: a migration that fails leaves nothing behind."""
    engine = create_engine(context.config.attributes["url"])
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
