"""Rules of the guard: which web addresses may be requested. Pure: one parser, one table of special ranges."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import httpx2

from penstock.errors import MediaRefused

#: Ports allowed for hosts that are not on the allow-list.
USUAL_PORTS = frozenset({80, 443, 8080, 8443})
MAX_URL_CHARS = 2048

_REFUSED = (
    "this URL may not be used: only http(s) URLs of public hosts that the service's operator allows (by the settings "
    "allowed_hosts, as host:port, or fetch_any_public_host)"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: No whitespace, control characters or backslashes anywhere; no userinfo and no escapes in the authority.
_URL = re.compile(r"(?i)https?://[^/?#\\@%\s\x00-\x20\x7f]+([/?#][^\\\s\x00-\x20\x7f]*)?")
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*|\[[0-9a-f:.]+\]")
#: Names that the C library's resolver reads as IPv4 addresses: 0x7f.1, 2130706433, 127.1
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)$")


@dataclass(frozen=True, slots=True)
class WebAddress:
    """A URL that was parsed once: connections use exactly the address that was checked."""

    scheme: str
    #: Host in lower case, IDNA-encoded, without brackets.
    host: str
    port: int
    #: Path and query as sent.
    target: str
    #: On the allow-list: the address need not be public.
    exempt: bool = False

    def __str__(self) -> str:
        """Return scheme and host for logs. Paths and queries may be secrets (often the only ones of receivers)."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port as in a URL and in the Host header."""
        pair = _pair(self.host, self.port)
        return pair.removesuffix(f":{self.port}") if self.port == _DEFAULT_PORTS[self.scheme] else pair

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{self.netloc}{self.target}"


def check_url(
    url: str, allowed: Iterable[str], any_public: bool, opens: Callable[[WebAddress], bool] = lambda _: False
) -> WebAddress:
    """Return the parsed URL; raise `MediaRefused` for a URL that is forbidden, whatever its name resolves to.

    `allowed` holds `host:port` pairs. Without `any_public`, the URL must be one of them, or one that `opens` allows.
    With it, any host on a usual port passes here, and is rejected later if one of its addresses is not public.
    """
    address = _parse(url)
    if _pair(address.host, address.port) in {_normal_pair(pair) for pair in allowed}:
        return replace(address, exempt=True)
    is_open = opens(address)
    if not any_public and not is_open:
        raise refusal("the host and port are not on the allow-list")
    if address.port not in USUAL_PORTS and not is_open:
        raise refusal("the port is unusual and not on the allow-list")
    literal = _literal(address.host)
    if literal is not None and not is_public(literal):
        raise refusal("the address is not public")
    return address


def operator_address(url: str) -> WebAddress:
    """Return the parsed URL of a service that the settings name, which need not be public."""
    return replace(_parse(url), exempt=True)


def joined(url: str, location: str) -> str:
    """Return the target of a redirect from a URL, still unchecked.

    Raises `MediaRefused` for a malformed target, and for a redirect from https to http, whose answer could be forged.
    """
    try:
        target = httpx2.URL(url).join(location)
    except (httpx2.InvalidURL, ValueError) as error:
        raise refusal("the redirect's URL is malformed") from error
    if httpx2.URL(url).scheme == "https" and target.scheme != "https":
        raise refusal("the redirect leaves https")
    return str(target)


def is_web_url(url: str) -> bool:
    """Return True for a plain http(s) URL, allowed or not."""
    try:
        _parse(url)
    except MediaRefused:
        return False
    return True


def is_public(address: str) -> bool:
    """Return True for an IP address that may belong to a public server."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # the resolver's output is not trusted either
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not any(ip in network for network in _SPECIAL_V4)
    embeds_v4 = (int(ip) >> 32) & 0xFDFF_FFFF == 0x5EFE  # ISATAP, in any prefix
    return ip in _GLOBAL_V6 and not embeds_v4 and not any(ip in network for network in _SPECIAL_V6)


#: Ranges besides those of `is_global` (Python 3.11 misses several): https://www.iana.org/assignments
_SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
        "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
        "240.0.0.0/4",
    )
)  # fmt: skip
#: All others are loopback, local, multicast, mapped or translated IPv4 (::/96, ::ffff/96, 64:ff9b::/32), or unused.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(text)
    # IETF protocols with Teredo; documentation; 6to4; AS112; documentation
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


def _parse(url: str) -> WebAddress:
    if len(url) > MAX_URL_CHARS or not _URL.fullmatch(url):
        raise refusal("not a plain http(s) URL")
    try:
        parsed = httpx2.URL(url)
        host = parsed.raw_host.decode("ascii").lower()
        port = _DEFAULT_PORTS[parsed.scheme] if parsed.port is None else parsed.port
    except (httpx2.InvalidURL, ValueError, KeyError) as error:
        raise refusal("not a URL") from error
    if not _HOST.fullmatch(f"[{host}]" if ":" in host else host) or not 0 < port < 65536:
        raise refusal("the host or port is malformed")
    if _literal(host) is None and (":" in host or _NUMERIC.match(host.rpartition(".")[2])):
        raise refusal("the host is an address in disguise")
    return WebAddress(parsed.scheme, host, port, parsed.raw_path.decode("ascii"))


def refusal(reason: str) -> MediaRefused:
    """Return the error for the client. The reason is a note for the log, not for the client."""
    error = MediaRefused(_REFUSED)
    error.add_note(reason)
    return error


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _pair(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _normal_pair(pair: str) -> str:
    host, _, port = pair.rpartition(":")
    return _pair(host.strip("[]").lower(), int(port))
