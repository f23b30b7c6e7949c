"""URLs that may be fetched: the rules of parsing and the ranges that are nobody's public server."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MediaRefused
from penstock.intake.addresses import WebAddress, check_url, is_public, joined

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.9.8.7",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2620:4f:8000::1",
    "2a00:1450::5efe:7f00:1",
    "2a00:1450::200:5efe:808:808",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80e::200e",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_special_ranges_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_addresses_beside_them_are(address: str) -> None:
    assert is_public(address)


#: Not to be asked in any mode, whatever its name resolves to.
REFUSED = [
    "",
    "example.com",
    "//example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "http://",
    "http:///path",
    "http:example.com",
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://@example.com/",
    "http://example.com@10.0.0.1/",
    "http://example.com\\@10.0.0.1/",
    "http://example.com\\.evil.example/",
    "http://example.com/a\\b",
    "http://exa mple.com/",
    "http://example.com/a b",
    "http://example.com/\r\nHost: evil",
    "http://example.com/\x00",
    "http://example.com/\x7f",
    " http://example.com/",
    "http://example.com/\n",
    "http://example%2ecom/",
    "http://example.com:22/",
    "http://example.com:6379/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:99999999/",
    "http://example.com:-1/",
    "http://example.com:80:80/",
    "http://example.com.:80/",
    "http://.example.com/",
    "http://-example.com/",
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.1./",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::1]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1/",
    "http://[v1.x]/",
    "http://example.com/" + "a" * 2048,
    "http://0/",
    "http://0.0.0.0/",
    "http://00000177.1/",
    "http://0x7f.1/",
    "http://0X7F.0X1/",
    "http://127.0.0.0x1/",
    "http://017700000001/",
    "http://3232235777/",
    "http://4294967296/",
    "http://1.2.3.4.5/",
    "http://256.256.256.256/",
    "http://127\u30020\u30020\u30021/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http://\uff10\uff58\uff17\uff46.1/",
    "http://[::127.0.0.1]/",
    "http://[0:0:0:0:0:ffff:7f00:1]/",
    "http://[::ffff:0x7f.1]/",
    "http://[64:ff9b::169.254.169.254]/",
    "http://[2002:a9fe:a9fe::]/",
    "http://[fec0::1]/",
    "http://[::]/",
    "http://[::1]:80:80/",
    "http://[]/",
    "http://[127.0.0.1]/",
    "http://example.com:8O/",
    "http://example.com:/\t",
    "http://example.com:21/",
    "http://example.com:25/",
    "http://example.com:9200/",
    "http://example.com./",
    "http://example..com/",
    "http://localhost./",
    "http://\u202eexample.com/",
    "http://exa\u00admple.com:22/",
    "http://10.0.0.1#@example.com/",
    "http://10.0.0.1?@example.com/",
    "http://example.com:80@10.0.0.1/",
    "http://[::1]@example.com/",
    "http:/\\example.com/",
    "http:\\\\example.com/",
    "http://example.com/\u2028",
    "http://example.com/%0d%0a\tx",
    "httpx://example.com/",
    "ws://example.com/",
    "data:text/plain,x",
    "unix:///var/run/docker.sock",
    "jar:http://example.com!/",
    "/vsicurl/http://example.com/",
]


@pytest.mark.parametrize("url", REFUSED)
def test_such_a_url_is_refused_with_the_one_generic_sentence(url: str) -> None:
    with pytest.raises(MediaRefused) as caught:
        check_url(url, (), True)
    assert caught.value.detail.startswith("this URL may not be used")


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("https://example.com", WebAddress("https", "example.com", 443, "/")),
        ("HTTP://EXAMPLE.com/A?b=%2F&c#d", WebAddress("http", "example.com", 80, "/A?b=%2F&c")),
        ("https://example.com:8443/x", WebAddress("https", "example.com", 8443, "/x")),
        ("https://例え.jp/ü", WebAddress("https", "xn--r8jz45g.jp", 443, "/%C3%BC")),
        ("https://[2606:4700:4700::1111]/x", WebAddress("https", "2606:4700:4700::1111", 443, "/x")),
        ("http://example.com#@10.0.0.1:22/", WebAddress("http", "example.com", 80, "/")),
        ("http://1.1.1.1:8080/", WebAddress("http", "1.1.1.1", 8080, "/")),
    ],
)
def test_a_plain_url_of_a_public_host_passes(url: str, parsed: WebAddress) -> None:
    assert check_url(url, (), True) == parsed


def test_without_open_mode_only_the_listed_pairs_pass() -> None:
    allowed = ("Data.example:443", "127.0.0.1:9000", "[::1]:9001", "::1:9002")
    for url in ("https://data.example/a", "http://127.0.0.1:9000/", "http://[::1]:9001/", "http://[::1]:9002/"):
        assert check_url(url, allowed, False).exempt
    for url in (
        "http://data.example/a",
        "https://data.example:8443/",
        "https://sub.data.example/",
        "http://127.0.0.1:9001/",
        "https://other.example/",
    ):
        with pytest.raises(MediaRefused):
            check_url(url, allowed, False)


def test_a_listed_pair_exempts_no_neighbour_in_open_mode() -> None:
    assert not check_url("http://data.example/", ("data.example:443",), True).exempt
    with pytest.raises(MediaRefused):
        check_url("http://127.0.0.1:80/", ("127.0.0.1:9000",), True)


def test_an_address_is_shown_without_path_and_query() -> None:
    address = check_url("https://example.com/a?token=secret", (), True)
    assert str(address) == "https://example.com"
    assert address.url == "https://example.com/a?token=secret"


#: Pieces of URLs, and some that mislead parsers.
_PIECES = st.sampled_from(
    [
        "http://", "https://", "//", "/", "\\", "@", ":", "#", "?", "%", "%2e", "%00", "[", "]", ".", "..", "-", "_",
        "\t", "\r\n", " ", "\0", "\u3002", "\uff0e", "\u00ad", "\u200d", "\ufe0f", "\udc80", "example.com", "localhost",
        "127.0.0.1", "127.1", "0x7f", "0177", "2130706433", "::1", "::ffff:10.0.0.1", "fe80::1%25eth0", "8.8.8.8", "80",
        "443", "8080", "22", "65536", "user", "xn--", "\u00df", "\u0130", "\uff11",
    ]
)  # fmt: skip


@given(st.sampled_from(["", "http://", "https://"]), st.lists(_PIECES | st.characters(), max_size=8).map("".join))
def test_whatever_the_text_it_is_refused_or_every_parser_reads_the_same_public_host(scheme: str, rest: str) -> None:
    url = scheme + rest
    try:
        address = check_url(url, (), True)
    except MediaRefused:
        return
    assert address.port in (80, 443, 8080, 8443)
    again = httpx2.URL(address.url)
    assert (again.raw_host.decode(), again.port or {"http": 80, "https": 443}[again.scheme]) == (
        address.host,
        address.port,
    )
    if url.isascii():
        parts = urlsplit(url)
        assert (parts.hostname, parts.username, parts.scheme) == (address.host, None, address.scheme)
    try:
        literal = ipaddress.ip_address(address.host)
    except ValueError:
        assert not address.host.rpartition(".")[2].isdigit()
    else:
        assert is_public(str(literal))


@given(st.lists(_PIECES | st.characters(max_codepoint=255), max_size=8).map("".join))
def test_whatever_a_redirect_says_it_is_refused_or_a_url_that_may_be_asked(location: str) -> None:
    try:
        found = check_url(joined("http://example.com/a", location), (), True)
    except MediaRefused:
        return
    assert found.scheme in ("http", "https")
    assert found.target.startswith("/")
    assert not set(found.url) & set("\r\n \t\0\\")


def test_a_redirect_does_not_leave_https() -> None:
    assert joined("https://example.com/a", "//b.example/c") == "https://b.example/c"
    assert joined("http://example.com/a", "https://b.example/c") == "https://b.example/c"
    assert joined("http://example.com/a", "http://b.example/c") == "http://b.example/c"
    for location in ("http://example.com/a", "HTTP://example.com/a", "ftp://example.com/a"):
        with pytest.raises(MediaRefused):
            joined("https://example.com/a", location)
