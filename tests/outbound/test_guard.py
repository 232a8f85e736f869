"""Which addresses may be called, however they are written."""

import asyncio
from ipaddress import ip_address

import pytest

from app.outbound import Guard, GuardError, guard, parse_url

from .servers import BOUND_S, answer_names

LOOPBACK_ONLY = Guard(["127.0.0.0/8", "::1/128"])
EVERYTHING = Guard(["0.0.0.0/0", "::/0"])

# 10.1.2.3 in every IPv6 wrapping; none of them may be judged as an IPv6 address.
WRAPPED = {
    "mapped": "::ffff:10.1.2.3",
    "compatible": "::10.1.2.3",
    "translated": "::ffff:0:10.1.2.3",
    "6to4": "2002:0a01:0203::1",
    "NAT64": "64:ff9b::10.1.2.3",
    "local NAT64": "64:ff9b:1::10.1.2.3",
    "Teredo": f"2001:0:4136:e378:8000:63bf:{0x0A01 ^ 0xFFFF:x}:{0x0203 ^ 0xFFFF:x}",
}
METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "2002:a9fe:a9fe::",
    "64:ff9b::a9fe:a9fe",
]


def resolve(asking, url):
    async def run():
        async with asyncio.timeout(BOUND_S):
            return await asking.resolve(parse_url(url))

    return asyncio.run(run())


@pytest.mark.parametrize("text", METADATA)
def test_metadata_addresses_are_refused_even_when_everything_is_allowed(text):
    with pytest.raises(GuardError, match="metadata"):
        EVERYTHING.check_address(ip_address(text))


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "224.0.0.1", "ff02::1"])
def test_addresses_that_no_server_has_are_refused(text):
    with pytest.raises(GuardError, match="not the address of a server"):
        EVERYTHING.check_address(ip_address(text))


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_an_ipv4_address_inside_ipv6_is_judged_as_itself(text):
    Guard(["10.0.0.0/8"]).check_address(ip_address(text))
    with pytest.raises(GuardError, match=r"10\.1\.2\.3 is not in the networks"):
        Guard(["::/0"]).check_address(ip_address(text))


def test_the_refusal_names_what_would_be_accepted():
    with pytest.raises(GuardError, match=r"8\.8\.8\.8 .*\(127\.0\.0\.0/8, ::1/128\)"):
        LOOPBACK_ONLY.check_address(ip_address("8.8.8.8"))
    with pytest.raises(GuardError, match=r"\(none\)"):
        Guard([]).check_address(ip_address("127.0.0.1"))


def test_loopback_is_itself_and_not_an_embedded_address():
    LOOPBACK_ONLY.check_address(ip_address("::1"))
    with pytest.raises(GuardError, match="::1 is not"):
        Guard(["127.0.0.0/8", "0.0.0.0/8"]).check_address(ip_address("::1"))


def test_a_network_that_cannot_be_read_is_an_error():
    with pytest.raises(ValueError, match="300"):
        Guard(["300.0.0.0/8"])


# What the C library takes for 127.0.0.1 and for 169.254.169.254.
SPELLINGS = ["{0}.{1}.{2}.{3}", "{whole}", "0x{whole:x}", "0{whole:o}", "0{0:o}.0{1:o}.0{2:o}.0{3:o}"]
SPELLINGS += ["0x{0:x}.0x{1:x}.0x{2:x}.0x{3:x}", "{0}.{1}.{low}", "{0}.{lower}", "000{0:o}.{1}.{2}.{3}"]


def spelled(template, *parts):
    whole = int(ip_address(".".join(map(str, parts))))
    return template.format(*parts, whole=whole, low=whole & 0xFFFF, lower=whole & 0xFFFFFF)


@pytest.mark.parametrize("template", SPELLINGS)
def test_other_spellings_of_an_address_are_judged_by_what_they_mean(template):
    good, bad = spelled(template, 127, 0, 0, 1), spelled(template, 169, 254, 169, 254)
    LOOPBACK_ONLY.check_literal(parse_url(f"http://{good}"))
    assert resolve(LOOPBACK_ONLY, f"http://{good}") == ["127.0.0.1"]
    for judge in (lambda url: EVERYTHING.check_literal(parse_url(url)), lambda url: resolve(EVERYTHING, url)):
        with pytest.raises(GuardError, match=r"169\.254\.169\.254 belongs to a cloud metadata"):
            judge(f"http://{bad}")


@pytest.mark.parametrize("text", [*METADATA, "::", "8.8.8.8"])
def test_a_literal_is_refused_before_and_at_connecting(text):
    url = f"http://[{text}]:8000" if ":" in text else f"http://{text}:8000"
    with pytest.raises(GuardError):
        LOOPBACK_ONLY.check_literal(parse_url(url))
    with pytest.raises(GuardError):
        resolve(LOOPBACK_ONLY, url)


@pytest.mark.parametrize("name", ["replica.test", "169.254.169.254.", "metadata.google.internal", "1.2.3.4.5"])
def test_a_name_is_left_to_the_time_of_connecting(name, monkeypatch):
    LOOPBACK_ONLY.check_literal(parse_url(f"http://{name}"))
    answer_names(monkeypatch, ["169.254.169.254"])
    with pytest.raises(GuardError, match="metadata"):
        resolve(EVERYTHING, f"http://{name}")


def test_one_forbidden_address_among_several_refuses_the_name(monkeypatch):
    answer_names(monkeypatch, ["127.0.0.1", "10.0.0.1"])
    with pytest.raises(GuardError, match=r"10\.0\.0\.1"):
        resolve(LOOPBACK_ONLY, "http://replica.test")


def test_every_checked_address_is_returned_once_in_order(monkeypatch):
    asked = answer_names(monkeypatch, ["::1", "127.0.0.1", "::1"])
    assert resolve(LOOPBACK_ONLY, "http://replica.test") == ["::1", "127.0.0.1"]
    assert asked == ["replica.test"]


def test_a_scoped_address_is_judged_without_its_zone(monkeypatch):
    answer_names(monkeypatch, ["fe80::1%eth0"])
    with pytest.raises(GuardError, match="link-local"):
        resolve(EVERYTHING, "http://replica.test")


def test_no_address_at_all_is_a_refusal(monkeypatch):
    answer_names(monkeypatch, [])
    with pytest.raises(GuardError, match="does not resolve"):
        resolve(EVERYTHING, "http://replica.test")


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_cannot_be_looked_up_is_a_refusal(error, monkeypatch):
    async def getaddrinfo(*_, **__):
        raise error

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    with pytest.raises(GuardError, match=r"'replica\.test' does not resolve"):
        resolve(EVERYTHING, "http://replica.test")


def test_a_silent_name_server_is_a_refusal_in_bounded_time(monkeypatch):
    async def getaddrinfo(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(guard, "RESOLVE_TIMEOUT_S", 0.05)
    with pytest.raises(GuardError, match=r"'replica\.test' .* in time"):
        resolve(EVERYTHING, "http://replica.test")
