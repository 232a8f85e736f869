"""Error answers, in the shape and words of vLLM 0.32."""

from __future__ import annotations

import json


class ApiError(Exception):
    """An error answer.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        Human-readable text.
    kind : str
        ``error.type`` of the body.
    param : str, optional
        ``error.param``: the field at fault.
    """

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def _document(self) -> dict[str, object]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }

    def body(self) -> bytes:
        """Return the JSON body."""
        return json.dumps(self._document(), separators=(",", ":")).encode()

    def event(self) -> bytes:
        """Return the event that stands for this error inside a stream, and the end of the stream."""
        return b"data: " + json.dumps(self._document()).encode() + b"\n\ndata: [DONE]\n\n"


def invalid_body(problems: list[dict[str, object]], param: str | None) -> ApiError:
    """Return the answer to a body that does not fit the schema, written as FastAPI's validation in vLLM."""
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:"
    lines = [f"  {{{', '.join(f'{key!r}: {value!r}' for key, value in p.items())}}}" for p in problems]
    return ApiError(400, "\n".join([count, *lines]), "Bad Request", param)


def engine_dead() -> ApiError:
    """Return the answer while the engine is broken."""
    return ApiError(
        500,
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "InternalServerError",
    )


def engine_busy() -> ApiError:
    """Return the answer when too many requests wait."""
    return ApiError(
        503,
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different"
        " instance.",
        "Service Unavailable",
    )


def unsupported_media_type() -> ApiError:
    """Return the answer to a body that does not say it is JSON."""
    return ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
