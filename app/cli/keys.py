"""Commands on API keys; they use the database of the settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from app.cli.output import AsJson, Refused, put_json, read_settings, refusing_database, say

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "key",
    scope: Annotated[str, typer.Option(help="read, operate (includes read) or admin (includes both).")] = "admin",
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once."""
    from app.kit.auth import SCOPES, create_key

    if scope not in SCOPES:
        raise Refused(f"--scope must be one of {', '.join(SCOPES)}")
    if not name.isprintable() or not 1 <= len(name) <= 100:
        raise Refused("NAME must be 1 to 100 printable characters")
    with _session() as db:
        key, text = create_key(db, name, scope)
        db.commit()
    if as_json:
        put_json({"id": str(key.id), "name": name, "scope": scope, "key": text})
    else:
        say(text)


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List keys; their texts are not known any more."""
    from app.kit.auth import list_keys

    with _session() as db:
        rows: list[dict[str, Any]] = [
            {
                "id": str(key.id),
                "name": key.name,
                "scopes": key.scopes,
                "created_at": key.created_at.isoformat(),
                "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
            }
            for key in list_keys(db)
        ]
    if as_json:
        put_json(rows)
        return
    for row in rows:
        ended = f"  revoked {row['revoked_at']}" if row["revoked_at"] else ""
        say(f"{row['id']}  {','.join(row['scopes']):8}  {row['created_at']}  {row['name']}{ended}")


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="Id from `faultsense keys list`.")]) -> None:
    """End a key now."""
    from app.kit.auth import revoke_key

    try:
        wanted = uuid.UUID(key_id)
    except ValueError:
        raise Refused(f"{key_id!r} is not the id of a key; `faultsense keys list` shows them") from None
    with _session() as db:
        if not revoke_key(db, wanted):
            raise Refused(f"there is no key {wanted}")
        db.commit()
    say(f"revoked {wanted}")


@app.command("secret")
def secret() -> None:
    """Make a key for FAULTSENSE_SECRET_KEYS, which encrypts stored replica tokens."""
    from app.kit.secrets import generate_key

    say(generate_key())


@contextmanager
def _session() -> Iterator[Session]:
    from app.kit.db import get_engine

    read_settings()
    with refusing_database(), Session(get_engine(), expire_on_commit=False) as db:
        yield db
