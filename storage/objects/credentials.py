"""Missing credentials of boto3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import NoCredentialsError, PartialCredentialsError

from penstock.errors import PenstockError


@contextmanager
def credentials_sought(without: type[PenstockError]) -> Iterator[None]:
    """Raise `without` with the remedy where credentials are missing: a retry cannot help.

    boto3 reports a missing half when a client is made, and missing credentials when the client signs a request.
    """
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise without("no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
