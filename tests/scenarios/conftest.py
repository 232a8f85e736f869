"""The webhook receiver, for scenarios of the whole service."""

from __future__ import annotations

from tests.webhooks.conftest import hook, receiver

__all__ = ["hook", "receiver"]
