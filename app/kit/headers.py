"""Response headers as the API document declares them."""

from __future__ import annotations

from typing import Any

LOCATION: dict[str, Any] = {"Location": {"description": "Path of what was made.", "schema": {"type": "string"}}}
RETRY_AFTER: dict[str, Any] = {
    "Retry-After": {"description": "Ask again after so many seconds.", "schema": {"type": "integer"}}
}
