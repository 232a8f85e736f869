"""Alembic migrations, run by `faultsense migrate`."""
