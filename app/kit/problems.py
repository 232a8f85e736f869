"""Errors as RFC 9457 problem details, validation included."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import DiskFull
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import Match

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20

logger = logging.getLogger(__name__)


class FieldError(BaseModel):
    """One field that was refused."""

    field: str = Field(description="Path of the field, for example `body.limits.probes_per_second`.")
    message: str = Field(description="What is wrong with it.")


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(description="`urn:faultsense:problem:` and the code.")
    title: str = Field(description="The code in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened here and what to do.")
    code: str = Field(description="Stable code for programs.")
    errors: list[FieldError] = Field(default_factory=list, description="The fields at fault.")


class Problem(Exception):
    """An error that is an answer.

    Parameters
    ----------
    status : int
        HTTP status.
    code : str
        Stable code, snake case.
    detail : str
        What happened and what to do.
    errors : sequence of FieldError
        The fields at fault.
    headers : dict
        Extra response headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = headers or {}

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        return ProblemDocument(
            type=f"urn:faultsense:problem:{self.code}",
            title=self.code.replace("_", " ").capitalize(),
            status=self.status,
            detail=self.detail,
            code=self.code,
            errors=self.errors,
        ).model_dump()

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.document(), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def invalid(field: str, message: str) -> Problem:
    """422 for one field."""
    return Problem(
        422, "invalid_request", f"{field}: {message}", errors=[FieldError(field=field, message=message)]
    )


def invalid_model(error: ValidationError) -> Problem:
    """422 for a document that was put together from a request and what is stored."""
    errors = [_field_error({**item, "loc": ("body", *item["loc"])}) for item in error.errors()[:MAX_ERRORS]]
    return Problem(422, "invalid_request", "; ".join(f"{e.field}: {e.message}" for e in errors[:3]), errors=errors)


def not_found(what: str, which: object) -> Problem:
    """404 for one thing."""
    return Problem(404, "not_found", f"there is no {what} {which}")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI declarations of problem answers, with those that every operation can give.

    FastAPI files their schema under the media type of the endpoint; `install` moves it to the one they have.
    """
    return {
        status: {"model": ProblemDocument, "content": {MEDIA_TYPE: {}}, "description": _TITLES[status]}
        for status in sorted({401, 403, 422, 429, 503, *statuses})
    }


_TITLES = {
    400: "The body cannot be read",
    401: "No valid API key",
    403: "The key lacks the scope",
    404: "Not found",
    409: "In conflict with the present state",
    410: "No longer there",
    413: "The body is too large",
    422: "A field is refused",
    429: "Too many requests with a wrong API key",
    503: "The database cannot be reached",
}


def install(app: FastAPI) -> None:
    """Make every error of an app a problem document, and let its API document say so."""
    _polish_document(app)

    @app.exception_handler(Problem)
    def _problem(_: Request, error: Problem) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    def _validation(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = [_field_error(item) for item in error.errors()[:MAX_ERRORS]]
        detail = "; ".join(f"{e.field}: {e.message}" for e in errors[:3])
        return Problem(422, "invalid_request", detail, errors=errors).response()

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> JSONResponse:
        codes = {404: "not_found", 405: "method_not_allowed", 400: "bad_request"}
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_allowed(request))
        return Problem(
            error.status_code, codes.get(error.status_code, "http_error"), str(error.detail), headers=headers
        ).response()

    @app.exception_handler(OperationalError)
    @app.exception_handler(PoolTimeoutError)
    def _database(_: Request, error: Exception) -> JSONResponse:
        if isinstance(getattr(error, "orig", None), DiskFull):
            logger.error("the database has no space left")
            return Problem(
                503,
                "database_full",
                "the database has no space left; nothing was stored. Try again when there is some",
                headers={"Retry-After": "60"},
            ).response()
        logger.error("the database cannot be reached: %s", type(error).__name__)
        return Problem(
            503, "database_unavailable", "the database cannot be reached; try again", headers={"Retry-After": "5"}
        ).response()

    @app.exception_handler(DataError)
    def _data(_: Request, error: Exception) -> JSONResponse:
        logger.warning("a value that PostgreSQL cannot take: %s", type(getattr(error, "orig", error)).__name__)
        return Problem(422, "invalid_request", "a text holds a character that cannot be stored").response()


def _polish_document(app: FastAPI) -> None:
    """Problems under their own media type, and operations called by their ids: "Get job", not "Get"."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        for operation in operations:
            operation["summary"] = re.sub("([A-Z])", r" \1", operation["operationId"]).capitalize()
        for answer in (answer for operation in operations for answer in operation["responses"].values()):
            content = answer.get("content", {})
            if MEDIA_TYPE in content:
                content[MEDIA_TYPE] = content.pop("application/json", content[MEDIA_TYPE])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _allowed(request: Request) -> list[str]:
    """Methods that some route takes at this path; the router itself names those of the first route only."""
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    scopes = {method: {**request.scope, "method": method} for method in methods}
    routes = request.app.routes
    return [m for m, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes)]


def _field_error(item: Mapping[str, Any]) -> FieldError:
    place = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    return FieldError(field=place, message=message)
