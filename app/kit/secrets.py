"""Recoverable secrets, encrypted at rest with keys from the settings."""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from app.settings import get_settings


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


def _fernet() -> MultiFernet:
    keys = [key.get_secret_value() for key in get_settings().secret_keys]
    if not keys:
        raise SecretsError("FAULTSENSE_SECRET_KEYS is not set; `faultsense keys secret` makes a key")
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise SecretsError("FAULTSENSE_SECRET_KEYS holds something that is not a Fernet key") from None
