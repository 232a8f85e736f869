"""Tricks to reach what must not be reached, against both guards: replicas' and webhooks'.

Each URL is tried the whole way a URL of a user goes: parsed, checked when it is registered, called. The call goes
through the guarded client; wherever it would connect is caught, so a trick that works fails its test without a
packet on the wire.
"""

import asyncio
from ipaddress import ip_address

import httpx
import pytest

from app.outbound import Guard, GuardError, PublicGuard, guarded_client, parse_endpoint, parse_url
from app.outbound.http import get_capped, post_capped

from .servers import BOUND_S, Authority, FakeServer, always, answer_names, whole

REPLICAS = Guard(["127.0.0.0/8", "::1/128"])
EVERYTHING = Guard(["0.0.0.0/0", "::/0"])
PUBLIC = PublicGuard([])
ALL_ALLOWED = PublicGuard(["0.0.0.0/0", "::/0"])
LOOPBACK_TOO = PublicGuard(["127.0.0.0/8"])


class Connected(Exception):
    """A request got past the guard; says where to."""


@pytest.fixture
def nowhere(monkeypatch):
    """No connection leaves: the transport that would make it raises."""

    async def connect(_, request):
        raise Connected(str(request.url))

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", connect)


def call(guard, url):
    async def run():
        async with asyncio.timeout(BOUND_S), guarded_client(guard) as client:
            return await get_capped(client, parse_endpoint(url))

    return asyncio.run(run())


def attempt(guard, url):
    """What becomes of a URL: registered, then called."""
    guard.check_literal(parse_url(url))
    return call(guard, url)


METADATA_SPELLINGS = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0xA9.0xFE.0xA9.0xFE",
    "025177524776",
    "0251.0376.0251.0376",
    "0251.254.0xa9.254",
    "169.254.43518",
    "169.16689662",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::169.254.169.254]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[::ffff:0:169.254.169.254]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::169.254.169.254]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:7f00:1::5601:5601]",
    "[fd00:ec2::254]",
    "[fd00:ec2::23]",
    "[fd00:0ec2:0:0:0:0:0:254]",
    "[fd20:ce::254]",
    "[fd00:42::42]",
    "[fd00:c1::a9fe:a9fe]",
    "[fe80::a9fe:a9fe]",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "169.254.170.2",
]


@pytest.mark.parametrize("guard", [EVERYTHING, PUBLIC, ALL_ALLOWED], ids=["replica", "public", "all"])
@pytest.mark.parametrize("host", METADATA_SPELLINGS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_metadata_is_never_called_however_it_is_spelled(host, scheme, guard, nowhere):
    with pytest.raises(GuardError, match="metadata"):
        guard.check_literal(parse_url(f"{scheme}://{host}/latest/meta-data/"))
    with pytest.raises(GuardError, match="metadata"):
        call(guard, f"{scheme}://{host}/latest/meta-data/")


@pytest.mark.parametrize(
    "text",
    [
        "64:ff9b:1:a9fe:a9:fe00::",  # /48
        "64:ff9b:1:a9fe:a9:fe00:808:808",
        "64:ff9b:1:a9:fe:a9fe::",  # /56
        "64:ff9b:1:0:a9:fea9:fe00:0",  # /64
        "64:ff9b:1::a9fe:a9fe",  # /96
    ],
)
def test_a_local_translator_s_prefix_may_have_any_length(text):
    for guard in (EVERYTHING, ALL_ALLOWED):
        with pytest.raises(GuardError, match="metadata"):
            guard.check_address(ip_address(text))


PRIVATE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "192.88.99.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:10.0.0.1]",
    "[::7f00:1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1:7f00:0:100:808:808]",
    "[64:ff9b:1::808:808]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2001:0:4136:e378:8000:63bf:f5ff:fffe]",
    "[fc00::1]",
    "[fd12:3456::1]",
    "[fec0::1]",
    "[100::1]",
    "[200::1]",
    "[2001:db8::1]",
    "[2001:2::1]",
    "[3fff::1]",
    "[4000::1]",
    "[5f00::1]",
    "[ff02::1]",
]


@pytest.mark.parametrize("host", PRIVATE)
def test_a_webhook_never_goes_where_the_internet_does_not(host, nowhere):
    for url in (f"https://{host}/", f"https://{host}:8443/hook"):
        with pytest.raises(GuardError):
            PUBLIC.check_literal(parse_url(url))
        with pytest.raises(GuardError):
            call(PUBLIC, url)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "134744072", "[2606:4700::1111]", "[64:ff9b::808:808]", "[::ffff:8.8.8.8]"]
)
def test_a_webhook_goes_to_public_addresses_with_tls_only(host, nowhere):
    with pytest.raises(Connected):
        attempt(PUBLIC, f"https://{host}/hook")
    for judge in (lambda url: PUBLIC.check_literal(parse_url(url)), lambda url: call(PUBLIC, url)):
        with pytest.raises(GuardError, match="https://"):
            judge(f"http://{host}/hook")
    with pytest.raises(GuardError, match="not in the networks that replicas may be in"):
        attempt(REPLICAS, f"https://{host}/hook")


def test_a_webhook_goes_to_allowed_private_networks_with_or_without_tls(nowhere):
    for scheme in ("http", "https"):
        with pytest.raises(Connected):
            attempt(LOOPBACK_TOO, f"{scheme}://127.0.0.1:8000/hook")
        with pytest.raises(GuardError, match=r"127\.0\.0\.0/8; FAULTSENSE_WEBHOOK_NETWORKS"):
            attempt(LOOPBACK_TOO, f"{scheme}://10.0.0.1:8000/hook")


NOT_URLS = [
    "http://127.0.0.1:0/",
    "http://127.0.0.1:65536/",
    "http://127.0.0.1:-80/",
    "http://127.0.0.1:80:80/",
    "http://127.0.0.1:8e1/",
    "http://user@127.0.0.1/",
    "http://127.0.0.1@169.254.169.254/",
    "http://127.0.0.1:80@169.254.169.254/",
    "http://127.0.0.1%40169.254.169.254/",
    "http://169.254.169.254%2f@127.0.0.1/",
    "http://127.0.0.1#@169.254.169.254/",
    "http://127.0.0.1?@169.254.169.254/",
    "http://127.0.0.1\\@169.254.169.254/",
    "http:\\\\169.254.169.254/",
    "http://127.0.0.1\x00.example.com/",
    "http://127.0.0.1%00.example.com/",
    "http://127.0.0.1/\r\nHost: 169.254.169.254",
    "http://127.0.0.1\r\n.example.com/",
    "http://127.0.0.1\t/",
    "http://127.0.0.1 169.254.169.254/",
    "\nhttp://127.0.0.1/",
    "http://[::1%25lo]/",
    "http://[::1%251]/",
    "http://[fe80::1%25eth0]/",
    "http://[::ffff:127.0.0.1/",
    "http://[127.0.0.1]/",
    "http://[v1.127.0.0.1]/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://１２７.0.0.1/",
    "http://lоcalhost/",
    "http://ß.example/",
    "http://..127.0.0.1/",
    "http://127.0.0.1../",
    "http:127.0.0.1/",
    "http:/127.0.0.1/",
    "///127.0.0.1/",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "file://127.0.0.1/etc/passwd",
    "dict://127.0.0.1:11211/stat",
    "unix:///run/docker.sock",
    "jar:http://127.0.0.1!/",
    "HTTP+UNIX://127.0.0.1/",
]


@pytest.mark.parametrize("text", NOT_URLS, ids=ascii)
def test_what_is_no_plain_url_is_refused(text):
    for parse in (parse_url, parse_endpoint):
        with pytest.raises(GuardError):
            parse(text)


@pytest.mark.parametrize("host", ["999.1.1.1", "256.256.256.256", "xn--a", "xn--", "xn--0.example"])
def test_a_host_that_the_client_cannot_call_is_a_refusal(host):
    """httpx raises InvalidURL or an IDNA error for these: neither is an httpx.HTTPError."""

    async def post(client, url):
        return await post_capped(client, url, {})

    async def run(how):
        async with guarded_client(EVERYTHING) as client:
            await how(client, f"https://{host}:8000/")

    for how in (get_capped, post):
        with pytest.raises(GuardError, match="malformed"):
            asyncio.run(run(how))


@pytest.mark.parametrize(
    "name", ["rebind.test", "localhost", "localhost.", "127.0.0.1.", "127.0.0.1.nip.test", "xn--bcher-kva.test"]
)
@pytest.mark.parametrize("guard", [REPLICAS, PUBLIC], ids=["replica", "public"])
@pytest.mark.parametrize(
    "address", ["169.254.169.254", "10.0.0.1", "fd00:ec2::254", "::ffff:10.0.0.1", "fe80::1%2"]
)
def test_a_name_is_judged_by_what_it_resolves_to(name, guard, address, monkeypatch, nowhere):
    asked = answer_names(monkeypatch, [address])
    with pytest.raises(GuardError):
        attempt(guard, f"https://{name}/")
    assert asked == [name]


@pytest.mark.parametrize(
    ("guard", "good"), [(REPLICAS, "127.0.0.1"), (PUBLIC, "8.8.8.8")], ids=["replica", "public"]
)
def test_an_answer_that_changes_is_of_no_use(guard, good, monkeypatch, nowhere):
    """Rebinding: one look-up a request, and the connection goes to the address that was looked at."""
    asked = answer_names(monkeypatch, [good], ["169.254.169.254"], [good, "10.0.0.1"], [good])
    url = "https://rebind.test/hook"
    with pytest.raises(Connected, match=rf"https://{good}/hook"):
        call(guard, url)
    for why in ("metadata", r"10\.0\.0\.1"):
        with pytest.raises(GuardError, match=why):
            call(guard, url)
    with pytest.raises(Connected, match=rf"https://{good}/hook"):
        call(guard, url)
    assert asked == ["rebind.test"] * 4


@pytest.mark.parametrize("guard", [REPLICAS, LOOPBACK_TOO], ids=["replica", "public"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(guard, status):
    async def run():
        async with (
            asyncio.timeout(BOUND_S),
            FakeServer(always(whole(200))) as inside,
            FakeServer(always(whole(status, location=f"{inside.url}/secret"))) as server,
            guarded_client(guard) as client,
        ):
            got = [(await get_capped(client, server.url))[0], (await post_capped(client, server.url, {}))[0]]
            return got, len(server.received), len(inside.received)

    assert asyncio.run(run()) == ([status] * 2, 2, 0)


def test_a_connection_proven_for_one_name_carries_no_other_name(tmp_path, monkeypatch):
    """Two names at one address: the second must prove itself, though a connection to the address is open."""
    authority = Authority()
    answer_names(monkeypatch, ["127.0.0.1"])

    async def run():
        async with (
            asyncio.timeout(BOUND_S),
            FakeServer(always(whole(200)), authority.server(tmp_path, "proven.test")) as server,
            guarded_client(REPLICAS, ca_pem=authority.pem) as client,
        ):
            for _ in range(2):
                assert (await get_capped(client, f"https://proven.test:{server.port}/"))[0] == 200
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await get_capped(client, f"https://other.test:{server.port}/")
            return [(r.connection, r.headers["host"]) for r in server.received]

    served = asyncio.run(run())
    assert {host.split(":")[0] for _, host in served} == {"proven.test"}
    assert {connection for connection, _ in served} == {0}, "and the first name keeps its connection"


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("https://hooks.test/", "hooks.test"),
        ("https://hooks.test:443/", "hooks.test"),
        ("https://hooks.test:80/", "hooks.test:80"),
        ("http://hooks.test:80/", "hooks.test"),
        ("http://hooks.test:443/", "hooks.test:443"),
        ("http://[::1]/", "[::1]"),
        ("http://[fd00::443]/", "[fd00::443]"),
        ("https://[fd00::443]:8443/", "[fd00::443]:8443"),
    ],
)
def test_the_host_header_names_no_port_that_the_scheme_implies(text, header):
    assert parse_url(text).host_header == header


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://Hooks.Test:443/In/", "https://hooks.test/In/"),
        ("https://hooks.test", "https://hooks.test"),
        ("http://hooks.test:8080/a//b/../c;d=1/%2e%2e", "http://hooks.test:8080/a//b/../c;d=1/%2e%2e"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
    ],
)
def test_an_endpoint_keeps_its_path(text, url):
    assert parse_endpoint(text) == url
    assert parse_endpoint(url) == url
