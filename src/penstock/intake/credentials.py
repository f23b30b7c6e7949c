"""The credentials of a process: the secrets, signatures and logins of its access profiles.

A `Session` is one fetch over its redirects. Each request gets the credentials of its own host, so that no redirect
carries them to another one. Signatures and cookies of logins are kept for later fetches, in memory only.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from penstock.config_tables import AccessProfile
from penstock.errors import ConfigError, FetchFailed, MediaNotFound, MediaRefused, PenstockError
from penstock.intake.access import Credentialed, container, is_service, profile_for, signature, with_credentials
from penstock.intake.addresses import WebAddress

#: Seconds before its end from which a signature is renewed.
RENEW_S = 60.0
#: Redirects of a fetch, at most; a login takes several.
MAX_REDIRECTS, MAX_LOGIN_REDIRECTS = 3, 8
#: Cookies of one host, and characters of one, at most.
_MAX_COOKIES, _MAX_COOKIE_CHARS = 20, 4096
_COOKIE = re.compile(r"\s*(?P<name>[!#-'*+\-.0-9A-Z^-z|~]+)=(?P<value>[\x21-\x3a\x3c-\x7e]*)\s*(?P<rest>;.*)?")
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class Answer(Protocol):
    """An answer of a signing service."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def body(self) -> bytes:
        """The body."""
        ...

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the service wants to be asked again."""
        ...


def is_passing(status: int) -> bool:
    """Return True for a status that a later request may not get: timeouts, too early, too many; and every 5xx."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING


#: Asks the service of a profile: (address, headers) -> its answer.
AskService = Callable[[str, Mapping[str, str]], Answer]


@dataclass(slots=True)
class Credentials:
    """The credentials of all tenants. Safe to share between threads: two may fetch the same signature at once."""

    profiles: Sequence[AccessProfile]
    ask: AskService = field(repr=False)
    clock: Callable[[], float] = time.time
    #: Signatures with their end, by profile, account and container.
    _signatures: dict[tuple[str, str, str], tuple[str, float]] = field(default_factory=dict, repr=False)
    #: Cookies of logins, by profile and host.
    _cookies: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict, repr=False)

    def session(self, tenant: str | None) -> Session:
        """Return the credentials of a fetch for a tenant; None for no credentials."""
        return Session(self, tenant)

    def signature(self, profile: AccessProfile, address: WebAddress) -> str | None:
        """Return a signature for the container of an address, which ends in a minute or later."""
        place = container(address)
        if place is None:
            return None
        key = (profile.name, *place)
        known = self._signatures.get(key)
        if known is None or known[1] - self.clock() < RENEW_S:
            known = self._signatures[key] = self._new_signature(profile, place)
        return known[0]

    def forget(self, profile: AccessProfile, address: WebAddress) -> bool:
        """Forget a signature or login that a server refused; return False where nothing can be renewed."""
        match profile.kind:
            case "planetary-computer" if (place := container(address)) is not None:
                self._signatures.pop((profile.name, *place), None)
                return True
            case "earthdata" if profile.username is not None:
                return self._cookies.pop((profile.name, str(address)), None) is not None
            case _:
                return False

    def cookies(self, profile: AccessProfile, address: WebAddress) -> dict[str, str]:
        """Return the header with the cookies that the host of an address has set; empty without cookies."""
        found = self._cookies.get((profile.name, str(address)), {})
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in found.items())} if found else {}

    def keep(self, profile: AccessProfile, address: WebAddress, lines: Sequence[str]) -> None:
        """Keep the cookies of a login, for the host that set them alone."""
        found = dict(self._cookies.get((profile.name, str(address)), {}))
        for line in lines:
            parsed = _COOKIE.fullmatch(line) if len(line) <= _MAX_COOKIE_CHARS else None
            if parsed is not None and (parsed["name"] in found or len(found) < _MAX_COOKIES):
                found[parsed["name"]] = parsed["value"]
        if lines:
            self._cookies[profile.name, str(address)] = {name: value for name, value in found.items() if value}

    def _new_signature(self, profile: AccessProfile, place: tuple[str, str]) -> tuple[str, float]:
        key = {} if profile.secret is None else {"Ocp-Apim-Subscription-Key": secret_of(profile)}
        answer = self.ask(f"{profile.service}/{place[0]}/{place[1]}", key)
        whose = f"the signing service of the access profile {profile.name!r}"
        if answer.status != HTTPStatus.OK:
            detail = f"{whose} answered with status {answer.status} for the container {'/'.join(place)}"
            raise (FetchFailed if is_passing(answer.status) else MediaRefused)(
                detail, retry_after_s=answer.retry_after_s
            )
        try:
            found = signature(json.loads(answer.body))
        except (ValueError, RecursionError):
            found = None
        if found is None:
            raise FetchFailed(f"{whose} sent no signature")
        return found


@dataclass(slots=True)
class Session:
    """The credentials of one fetch."""

    _credentials: Credentials
    _tenant: str | None
    #: Profile of the last request to a host of one; its login may follow.
    _profile: AccessProfile | None = None
    _renewed: bool = False

    def opens(self, address: WebAddress) -> bool:
        """Return True for a host that a profile names for the tenant, or a login that its host redirected to."""
        return self._of(address) is not None

    @property
    def max_redirects(self) -> int:
        """Redirects that the fetch may follow."""
        is_login = self._profile is not None and self._profile.kind == "earthdata"
        return MAX_LOGIN_REDIRECTS if is_login else MAX_REDIRECTS

    def request(self, address: WebAddress) -> Credentialed:
        """Return the request to an address, with the credentials of its own host.

        Raises `FetchFailed` for a secret that this process lacks, and the errors of a signing service.
        """
        profile = self._of(address)
        if profile is not None:
            self._profile = profile
            of_container = profile.kind == "planetary-computer"
            secret = self._credentials.signature(profile, address) if of_container else secret_of(profile)
            made = with_credentials(profile, address, secret)
        else:
            made = Credentialed(address.target)
        if self._profile is None or self._profile.kind != "earthdata":
            return made
        return Credentialed(made.target, {**made.headers, **self._credentials.cookies(self._profile, address)})

    def heard(self, address: WebAddress, status: int, cookies: Sequence[str]) -> bool:
        """Keep the cookies of a login; return True if the request is worth one more try, with new credentials."""
        profile = self._profile
        if profile is None:
            return False
        if profile.kind == "earthdata":
            self._credentials.keep(profile, address, cookies)
        if status not in _REFUSED or self._renewed or self._of(address) is None:
            return False
        self._renewed = self._credentials.forget(profile, address)
        return self._renewed

    def refusal(self, address: WebAddress, status: int) -> PenstockError | None:
        """Return the error for an answer that is a refusal or the page of a login; None for any other answer."""
        profile = self._of(address)
        at_login = profile is not None and profile.kind == "earthdata" and is_service(profile, address)
        if profile is not None and at_login and not is_passing(status):
            return MediaRefused(
                f"the login of the access profile {profile.name!r} did not succeed (status {status}): check its "
                f"account, and approve the data's application there"
            )
        if status not in _REFUSED:
            return None
        if profile is not None:
            return MediaRefused(
                f"the server refused the credentials of the access profile {profile.name!r} (status {status})"
            )
        hint = "if it wants credentials, the service's operator can add an access profile for its host"
        return MediaNotFound(f"the server responded with status {status}; {hint}")

    def _of(self, address: WebAddress) -> AccessProfile | None:
        own = profile_for(self._credentials.profiles, address, self._tenant)
        if own is not None:
            return own
        login = self._profile
        if login is not None and login.kind == "earthdata" and is_service(login, address):
            return login
        return None


def secret_of(profile: AccessProfile) -> str:
    """Return the secret of a profile; raise `FetchFailed`, which another worker may not, if it is missing here."""
    assert profile.secret is not None  # noqa: S101  (the settings were checked)
    try:
        return profile.secret.read()
    except ConfigError as error:
        raise FetchFailed(
            f"the access profile {profile.name!r} has no secret on this machine: {error.detail}"
        ) from None
