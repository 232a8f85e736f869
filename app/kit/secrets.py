"""Recoverable secrets, encrypted at rest with keys from the settings."""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from sqlalchemy import MetaData, select, update
from sqlalchemy.orm import Session

from app.kit.problems import invalid
from app.settings import get_settings

# Marks the columns that `reencrypt` looks after.
ENCRYPTED = {"encrypted": True}


class SecretsError(RuntimeError):
    """Secrets cannot be stored or read; the message names the setting to look at."""


def generate_key() -> str:
    """A new key for ``FAULTSENSE_SECRET_KEYS``."""
    return Fernet.generate_key().decode()


def encrypt(text: str) -> bytes:
    """Encrypt with the first key.

    Raises
    ------
    SecretsError
        When no usable key is set.
    """
    return _fernet().encrypt(text.encode())


def encrypt_field(field: str, text: str) -> bytes:
    """Encrypt a secret that came with a request.

    Raises
    ------
    Problem
        422 naming the field, when no usable key is set.
    """
    try:
        return encrypt(text)
    except SecretsError as error:
        raise invalid(field, f"cannot be stored: {error}") from None


def decrypt(token: bytes) -> str:
    """Decrypt with whichever key fits.

    Raises
    ------
    SecretsError
        When no usable key is set, or none fits.
    """
    try:
        return _fernet().decrypt(token).decode()
    except InvalidToken:
        raise SecretsError("a stored secret was encrypted with a key that FAULTSENSE_SECRET_KEYS lacks") from None


def reencrypt(db: Session, metadata: MetaData) -> int:
    """Encrypt every stored secret anew with the first key, so that older keys can be taken out of the settings.

    Parameters
    ----------
    metadata : MetaData
        Tables whose columns are marked with `ENCRYPTED`.

    Returns
    -------
    int
        Number of secrets.

    Raises
    ------
    SecretsError
        When a secret cannot be read; nothing is changed then, provided the caller rolls back.
    """
    fernet = _fernet()
    number = 0
    for table in metadata.sorted_tables:
        for secret in (column for column in table.columns if column.info == ENCRYPTED):
            keys = list(table.primary_key)
            for row in db.execute(select(*keys, secret).where(secret.is_not(None)).with_for_update()).all():
                same = [column == value for column, value in zip(keys, row[:-1], strict=True)]
                try:
                    value = fernet.rotate(row[-1])
                except InvalidToken:
                    raise SecretsError(
                        f"a secret in {table.name} was encrypted with a key that FAULTSENSE_SECRET_KEYS lacks"
                    ) from None
                db.execute(update(table).where(*same).values({secret.name: value}))
                number += 1
    return number


def _fernet() -> MultiFernet:
    keys = [key.get_secret_value() for key in get_settings().secret_keys]
    if not keys:
        raise SecretsError("FAULTSENSE_SECRET_KEYS is not set; `faultsense keys secret` makes a key")
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise SecretsError("FAULTSENSE_SECRET_KEYS holds something that is not a Fernet key") from None
