"""What the tests of outbound traffic share: an HTTP/1.1 server that answers as a test says, byte by byte, a
certificate authority, and name servers that lie."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"
# However busy the machine: nothing here takes this long unless it is broken.
BOUND_S = 60.0


@dataclass(frozen=True)
class Received:
    """A request as the server read it; ``connection`` counts the server's connections from 0.

    ``reader`` gives what else comes on the connection: nothing, until the client goes away.
    """

    connection: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def rank(self) -> int:
        return int(self.headers["x-data-parallel-rank"])


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeServer:
    """Answers every request by ``answer``; a connection ends when it raises `Hangup`."""

    answer: Answer
    tls: ssl.SSLContext | None = None
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._open: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, ssl=self.tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{LOOPBACK}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        number, self.connections = self.connections, self.connections + 1
        # Cancelled at the end of the test; asyncio would report a cancelled handler as an error.
        ended = (ConnectionError, asyncio.IncompleteReadError, Hangup, ssl.SSLError, asyncio.CancelledError)
        with suppress(*ended):
            while True:
                request = await _read_request(reader, number)
                self.received.append(request)
                await self.answer(request, writer)
                await writer.drain()
        writer.close()
        self._open.discard(task)


class Hangup(Exception):
    """Raised by an answer: close the connection."""


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(connection, method, target, headers, body, reader)


def whole(status: int, body: bytes | object = b"", **headers: str) -> bytes:
    """A response with a Content-Length; what is not bytes becomes JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(payload)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def always(response: bytes) -> Answer:
    """Answer every request alike."""

    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response)

    return answer


async def silent(_: Received, __: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def closed_port() -> int:
    """A loopback port where nobody listens."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
    return port


@contextmanager
def full_port() -> Iterator[int]:
    """A loopback port whose queue of connections is full, so that connecting to it gets no answer (on Linux)."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind((LOOPBACK, 0))
        listening.listen(0)
        for sock in (first, second):
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def answer_names(monkeypatch: pytest.MonkeyPatch, *answers: Sequence[str]) -> list[str]:
    """Make every look-up return the next of ``answers``, the last one for ever; return the names asked for."""
    asked: list[str] = []

    async def getaddrinfo(_: object, host: str, port: int, **__: object) -> list[Any]:
        addresses = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


class Authority:
    """A certificate authority made for one test run."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        self._cert = self._sign(self._name, self._key, [x509.BasicConstraints(ca=True, path_length=None)])

    @property
    def pem(self) -> str:
        return self._cert.public_bytes(serialization.Encoding.PEM).decode()

    def server(self, folder: Path, host: str) -> ssl.SSLContext:
        """A server's context with a certificate for one host, name or address."""
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "replica")])
        cert = self._sign(subject, key, [x509.SubjectAlternativeName([name])])
        file = folder / f"{host}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + cert.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: list[x509.ExtensionType]
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())
