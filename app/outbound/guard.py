"""Which addresses may be called.

A name is resolved once and the connection goes to the address that was checked, so an answer that changes
between check and use has no effect. Decimal, octal and IPv4-in-IPv6 spellings need no special cases: they are
judged by the address they resolve to.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Cloud metadata services hand out credentials: never a replica, whatever the allow-list says.
METADATA: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "168.63.129.16/32",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
        "fe80::/10",
    )
)
# IPv6 ranges whose last 32 bits are an IPv4 address: compatible, translated (SIIT), NAT64 and its local form.
EMBEDDING: tuple[Network, ...] = tuple(
    ip_network(text) for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
MAX_URL = 2000
RESOLVE_TIMEOUT_S = 5.0

_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
_MAX_NAME = 253


class GuardError(ValueError):
    """A URL or address that must not be called; the message says why and what would be accepted."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart.

    Parameters
    ----------
    scheme : {"http", "https"}
        How to connect.
    host : str
        Name or literal address, without brackets.
    port : int
        Explicit or the scheme's own.
    path : str
        Prefix before the engine's own paths; empty or ``/prefix`` without a slash at its end.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The normalised URL."""
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(text: str) -> Target:
    """Take a base URL apart.

    Raises
    ------
    GuardError
        Not http or https, no host or one that no name server knows, a bad port, credentials, a query, a fragment,
        or control characters.
    """
    if len(text) > MAX_URL or any(ord(c) <= 0x20 or ord(c) >= 0x7F or c == "\\" for c in text):
        raise GuardError("a URL must be plain ASCII without spaces or backslashes, of at most 2000 characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise GuardError("this is not a URL with a valid port") from None
    if parts.scheme not in ("http", "https"):
        raise GuardError("a URL must begin with http:// or https://")
    if not parts.hostname:
        raise GuardError("the URL names no host")
    if not _is_host(parts.hostname):
        raise GuardError("the URL's host is neither a DNS name nor an IP address (without a zone)")
    if parts.username is not None or parts.password is not None:
        raise GuardError("credentials do not belong into a URL; use auth.bearer")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise GuardError("give the base URL, without a query or fragment")
    if port == 0:
        raise GuardError("port 0 cannot be called")
    default = 443 if parts.scheme == "https" else 80
    return Target(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"))


def _is_host(text: str) -> bool:
    if ":" not in text:
        return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None
    try:
        return "%" not in text and ip_address(text) is not None
    except ValueError:
        return False


class Guard:
    """Decides by address.

    Parameters
    ----------
    networks : iterable of str
        Networks in CIDR notation that may be called. Replicas are private by nature, so there is no
        exception for public addresses: what is not listed is refused.

    Raises
    ------
    ValueError
        When a network cannot be read.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self.networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def check_address(self, address: Address) -> None:
        """Refuse metadata services and whatever is not in the allow-list.

        Raises
        ------
        GuardError
            When the address must not be called.
        """
        real = _unwrap(address)
        if any(real in network for network in METADATA):
            raise GuardError(f"{real} belongs to a cloud metadata or link-local service and is never called")
        if real.is_multicast or real.is_unspecified:
            raise GuardError(f"{real} is not the address of a server")
        if not any(real in network for network in self.networks):
            allowed = ", ".join(map(str, self.networks)) or "none"
            raise GuardError(f"{real} is not in the networks that replicas may be in ({allowed})")

    def check_literal(self, target: Target) -> None:
        """Check a host that is written as an address; names are checked when they are connected to.

        Raises
        ------
        GuardError
            When the address must not be called.
        """
        try:
            address = ip_address(target.host)
        except ValueError:
            try:
                # Decimal, octal and short forms: what the C library would connect to.
                address = ip_address(socket.inet_aton(target.host))
            except OSError:
                return
        self.check_address(address)

    async def resolve(self, target: Target) -> list[str]:
        """The addresses to connect to, in the order in which to try them.

        Every address that the name resolves to is checked: a name with one forbidden address is refused.

        Raises
        ------
        GuardError
            When the name does not resolve in time, or resolves to an address that must not be called.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise GuardError(f"the host name {target.host!r} does not resolve in time") from None
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise GuardError(f"the host name {target.host!r} does not resolve")
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        for text in addresses:
            self.check_address(ip_address(text.split("%", 1)[0]))
        return addresses


def _unwrap(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, whichever way it is embedded."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in EMBEDDING) and not (address.is_loopback or address.is_unspecified):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
