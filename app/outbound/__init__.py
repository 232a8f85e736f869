"""The outbound guard: every URL that the service calls is checked where it connects, not where it was typed."""

from app.outbound.guard import Guard, GuardError, PublicGuard, Target, parse_endpoint, parse_url
from app.outbound.http import guarded_client

__all__ = ["Guard", "GuardError", "PublicGuard", "Target", "guarded_client", "parse_endpoint", "parse_url"]
