"""Base URLs: what is taken apart, and what is refused before any connection."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.outbound import GuardError, Target, parse_url

REFUSED = {
    "": "http",
    "replica:8000": "http",
    "ftp://replica/": "http://",
    "file:///etc/passwd": "http://",
    "gopher://127.0.0.1:70/": "http://",
    "javascript:alert(1)": "http://",
    "//replica": "http://",
    "http://": "no host",
    "http:///v1": "no host",
    "http://:8000": "no host",
    "http://user@replica": "credentials",
    "http://user:secret@replica": "credentials",
    "http://@replica": "credentials",
    "http://:@replica": "credentials",
    "http://127.0.0.1@169.254.169.254": "credentials",
    "http://replica?x=1": "query",
    "http://replica?": "query",
    "http://replica/#top": "fragment",
    "http://replica#": "fragment",
    "http://replica:0": "port 0",
    "http://replica:65536": "port",
    "http://replica:-1": "port",
    "http://replica:8o": "port",
    "http://replica:٨٠": "ASCII",
    "http://rep lica": "spaces",
    " http://replica": "spaces",
    "http://replica/\r\nX-Evil: 1": "spaces",
    "http://replica\x00.test": "spaces",
    "http://replica\x7f": "ASCII",
    "http://replica\\@169.254.169.254": "backslashes",
    "http://bücher.test": "ASCII",
    "http://１２７.0.0.1": "ASCII",
    "http://127。0。0。1": "ASCII",
    "http://a..b": "host",
    "http://.replica": "host",
    "http://" + "a" * 64 + ".test": "host",
    "http://" + ".".join(["a" * 60] * 5): "host",
    "http://%31%32%37.0.0.1": "host",
    "http://rep%00lica": "host",
    "http://replica;x": "host",
    "http://replica,other": "host",
    'http://rep"lica': "host",
    "http://<script>": "host",
    "http://[::1": "URL",
    "http://[fe80::1%25eth0]": "host",
    "http://[::1%lo]": "host",
    "http://[1:2:3]": "URL|host",
    "http://replica/" + "a" * 2000: "2000",
}


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=lambda value: ascii(value)[:40])
def test_a_url_is_refused_with_the_reason(text, why):
    with pytest.raises(GuardError, match=why):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "target", "url"),
    [
        ("http://replica", Target("http", "replica", 80, ""), "http://replica:80"),
        ("HTTPS://Replica.Test/", Target("https", "replica.test", 443, ""), "https://replica.test:443"),
        ("http://10.0.0.5:8000/v/p/", Target("http", "10.0.0.5", 8000, "/v/p"), "http://10.0.0.5:8000/v/p"),
        ("http://[::1]:8000", Target("http", "::1", 8000, ""), "http://[::1]:8000"),
        ("http://replica.test.", Target("http", "replica.test.", 80, ""), "http://replica.test.:80"),
        (
            "http://xn--bcher-kva.test",
            Target("http", "xn--bcher-kva.test", 80, ""),
            "http://xn--bcher-kva.test:80",
        ),
        ("http://gpu_node-1", Target("http", "gpu_node-1", 80, ""), "http://gpu_node-1:80"),
    ],
)
def test_a_url_is_normalised(text, target, url):
    assert parse_url(text) == target
    assert parse_url(text).url == url
    assert parse_url(url) == target
    assert target.tls == url.startswith("https")


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60).map("http://".__add__) | st.text(max_size=60))
def test_any_text_is_a_target_or_a_guard_error(text):
    try:
        target = parse_url(text)
    except GuardError:
        return
    assert target.host
    assert 1 <= target.port <= 65535
    # What goes into a request line and a Host header cannot carry another header.
    assert all("!" <= c <= "~" for c in target.authority + target.path)
    assert parse_url(target.url) == target
