"""Bring the database to the tables that this version needs, or back."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate forward; does nothing when the tables are current."""
    command.upgrade(_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate back to a revision; ``base`` drops everything."""
    command.downgrade(_config(url), revision)


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url
    return config
