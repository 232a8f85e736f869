"""Secrets and signatures of Standard Webhooks: HMAC-SHA256 over id, time and body, version ``v1``.

The specification's own library verifies in the tests. Here it would bring nothing but a second, time-zone-bound
clock: the time that is signed comes from the database.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64


def new_secret() -> str:
    """A secret of 256 random bits."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The key inside a secret's text.

    Raises
    ------
    ValueError
        Not ``whsec_`` and base64, or not 24 to 64 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ValueError(f"must be {PREFIX} followed by {MIN_BYTES} to {MAX_BYTES} random bytes in base64")
    return key


def signed_headers(event_id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Headers of a request; no signature at all when there is no key.

    Parameters
    ----------
    event_id : str
        The same on every try: what receivers know a repeat by.
    timestamp : int
        Of this try, in seconds since 1970.
    body : bytes
        As it is sent.
    keys : iterable of bytes
        Each signs; receivers accept any.
    """
    headers = {"webhook-id": event_id, "webhook-timestamp": str(timestamp)}
    signed = f"{event_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    if signatures:
        headers["webhook-signature"] = " ".join(f"v1,{signature}" for signature in signatures)
    return headers
