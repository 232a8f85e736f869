"""A private PostgreSQL and Redis for the demo, `faultsense up` and the tests: real servers from wheels.

No Docker, no root (root is tolerated), no service started by hand, and nothing left behind: see
`EmbeddedServices`.
"""

from app.embedded.errors import EmbeddedServiceError
from app.embedded.services import EmbeddedServices

__all__ = ["EmbeddedServiceError", "EmbeddedServices"]
