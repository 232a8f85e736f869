"""Which addresses may be called.

A name is resolved once and the connection goes to the address that was checked, so an answer that changes
between check and use has no effect. Decimal, octal and IPv4-in-IPv6 spellings are judged by the address they mean.
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
        "fd00:ec2::/32",
        "fd00:42::42/128",
        "fd00:c1::a9fe:a9fe/128",
        "fd20:ce::254/128",
        "fe80::/10",
    )
)
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
# IPv6 ranges whose last 32 bits are an IPv4 address: compatible, translated (SIIT), NAT64 and its local form.
EMBEDDING: tuple[Network, ...] = (
    *(ip_network(text) for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")),
    LOCAL_NAT64,
)
# All that is routed on the internet; site-local, unique local and whatever is unassigned lies outside.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# Inside the internet's ranges, but for documentation and for relays that nobody runs any more.
NOT_PUBLIC: tuple[Network, ...] = (ip_network("3fff::/20"), ip_network("192.88.99.0/24"))
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
        """Host and port, for a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The authority as browsers send it: servers may redirect whoever names the scheme's own port."""
        default = ":443" if self.tls else ":80"
        return self.authority.removesuffix(default) if self.authority.endswith(default) else self.authority

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
    if not _is_host(parts.hostname) or ("[" in parts.netloc and ":" not in parts.hostname):
        raise GuardError("the URL's host is neither a DNS name nor an IP address (without a zone)")
    if parts.username is not None or parts.password is not None:
        raise GuardError("credentials do not belong into a URL; use auth.bearer")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise GuardError("give the base URL, without a query or fragment")
    if port == 0:
        raise GuardError("port 0 cannot be called")
    default = 443 if parts.scheme == "https" else 80
    return Target(parts.scheme, _canonical(parts.hostname), port or default, parts.path.rstrip("/"))


def parse_endpoint(text: str) -> str:
    """Check a URL that is called as it stands, a slash at its end included; scheme and host are normalised.

    Raises
    ------
    GuardError
        As `parse_url`.
    """
    target = parse_url(text)
    path = urlsplit(text).path
    return f"{target.scheme}://{target.host_header}{path}"


def _is_host(text: str) -> bool:
    if ":" not in text:
        return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None
    try:
        return "%" not in text and ip_address(text) is not None
    except ValueError:
        return False


def _canonical(host: str) -> str:
    """Decimal, octal and short forms of an address become the one that the C library would connect to."""
    try:
        return str(IPv4Address(socket.inet_aton(host)))
    except OSError:
        return host


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

    def check_address(self, address: Address, *, tls: bool = True) -> None:
        """Refuse metadata services and whatever the networks do not allow.

        Parameters
        ----------
        address : IPv4Address or IPv6Address
            Where the connection would go.
        tls : bool
            Whether it would be encrypted and the server proven.

        Raises
        ------
        GuardError
            When the address must not be called.
        """
        real = _unwrap(address)
        if any(meant in network for meant in (real, *_translations(address)) for network in METADATA):
            raise GuardError(f"{real} belongs to a cloud metadata or link-local service and is never called")
        if real.is_multicast or real.is_unspecified:
            raise GuardError(f"{real} is not the address of a server")
        if not any(real in network for network in self.networks):
            self._check_unlisted(address, real, tls)

    def _check_unlisted(self, address: Address, real: Address, tls: bool) -> None:  # noqa: ARG002
        """Judge an address that is in none of the networks."""
        raise GuardError(f"{real} is not in the networks that replicas may be in ({self._allowed()})")

    def _allowed(self) -> str:
        return ", ".join(map(str, self.networks)) or "none"

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
            return
        self.check_address(address, tls=target.tls)

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
            self.check_address(ip_address(text.split("%", 1)[0]), tls=target.tls)
        return addresses


class PublicGuard(Guard):
    """Decides for webhook receivers: public addresses over TLS, and what the allow-list names.

    Parameters
    ----------
    networks : iterable of str
        Private networks in CIDR notation that may be called, too, there also without TLS.
    """

    def _check_unlisted(self, address: Address, real: Address, tls: bool) -> None:
        if address in LOCAL_NAT64 or not _is_public(real):
            raise GuardError(
                f"{real} is not a public address, and not in the networks that webhooks may be in"
                f" ({self._allowed()}; FAULTSENSE_WEBHOOK_NETWORKS)"
            )
        if not tls:
            raise GuardError(f"{real} is a public address: the URL must begin with https://")


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


def _translations(address: Address) -> list[IPv4Address]:
    """What a local NAT64 may make of an address: its prefix has one of several lengths (RFC 6052, 2.2)."""
    if address not in LOCAL_NAT64:
        return []
    whole = int(address)
    high = whole >> 64 & 0xFFFFFFFF  # up to bit 64; bits 64 to 71 are left out
    low = whole >> 24 & 0xFFFFFFFF
    return [
        IPv4Address((high & 0xFFFF) << 16 | low >> 16),
        IPv4Address((high & 0xFF) << 24 | low >> 8),
        IPv4Address(low),
    ]


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    return address.is_global and not any(address in network for network in NOT_PUBLIC)
