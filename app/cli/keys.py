"""Commands on API keys; they use the database of the settings."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from sqlalchemy.orm import Session

from app.cli.output import AsJson, Refused, put_json, read_settings, refusing, refusing_database, say

if TYPE_CHECKING:
    from app.kit.auth import ApiKey

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "key",
    scope: Annotated[str, typer.Option(help="read, operate (includes read) or admin (includes both).")] = "admin",
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="Days it is valid; default: for good.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once."""
    from app.kit.auth import SCOPES, create_key

    if scope not in SCOPES:
        raise Refused(f"--scope must be one of {', '.join(SCOPES)}")
    if not name.isprintable() or not 1 <= len(name) <= 100:
        raise Refused("NAME must be 1 to 100 printable characters")
    ends = None if days is None else dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    with _session("keys.create") as db:
        key, text = create_key(db, name, scope, ends)
        db.commit()
    _show_new(key, text, as_json=as_json)


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
                "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
                "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
            }
            for key in list_keys(db)
        ]
    if as_json:
        put_json(rows)
        return
    for row in rows:
        ended = "".join(f"  {why} {row[f'{why}_at']}" for why in ("expires", "revoked") if row[f"{why}_at"])
        say(f"{row['id']}  {','.join(row['scopes']):8}  {row['created_at']}  {row['name']}{ended}")


@app.command("rotate")
def rotate(
    key_id: Annotated[str, typer.Argument(help="Id from `faultsense keys list`.")],
    grace_hours: Annotated[float, typer.Option(min=0, max=2160, help="The old key still works for so long.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Make a successor with the same name and scope. It is shown once."""
    from app.kit.auth import ApiKey, rotate_key
    from app.kit.problems import Problem

    wanted = _key_id(key_id)
    with _session("keys.rotate", wanted) as db:
        old = db.get(ApiKey, wanted, with_for_update=True)
        if old is None:
            raise Refused(f"there is no key {wanted}")
        try:
            key, text = rotate_key(db, old, dt.timedelta(hours=grace_hours))
        except Problem as problem:
            raise Refused(problem.detail) from None
        db.commit()
    _show_new(key, text, as_json=as_json)


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="Id from `faultsense keys list`.")]) -> None:
    """End a key now."""
    from app.kit.auth import revoke_key

    wanted = _key_id(key_id)
    with _session("keys.revoke", wanted) as db:
        if not revoke_key(db, wanted):
            raise Refused(f"there is no key {wanted}")
        db.commit()
    say(f"revoked {wanted}")


@app.command("secret")
def secret() -> None:
    """Make a key for FAULTSENSE_SECRET_KEYS, which encrypts stored tokens and webhook secrets."""
    from app.kit.secrets import generate_key

    say(generate_key())


@app.command("reencrypt")
def reencrypt() -> None:
    """Encrypt every stored secret with the first of FAULTSENSE_SECRET_KEYS; the others can then be taken out."""
    import app.main  # noqa: F401  all tables
    from app.kit.db import Base
    from app.kit.secrets import SecretsError
    from app.kit.secrets import reencrypt as encrypt_anew

    with refusing(SecretsError), _session("keys.reencrypt") as db:
        number = encrypt_anew(db, Base.metadata)
        db.commit()
    say(f"{number} secrets are encrypted with the first key")


def _show_new(key: ApiKey, text: str, *, as_json: bool) -> None:
    if as_json:
        ends = None if key.expires_at is None else key.expires_at.isoformat()
        put_json({"id": str(key.id), "name": key.name, "scope": key.scopes[0], "key": text, "expires_at": ends})
    else:
        say(text)


def _key_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Refused(f"{text!r} is not the id of a key; `faultsense keys list` shows them") from None


@contextmanager
def _session(action: str | None = None, target: object = "") -> Iterator[Session]:
    """A session on the settings' database; with an action, its audit entry is in the same transaction."""
    from app.kit.audit import record_command
    from app.kit.db import get_engine

    read_settings()
    with refusing_database(), Session(get_engine(), expire_on_commit=False) as db:
        if action is not None:
            record_command(db, action, str(target))
        yield db
