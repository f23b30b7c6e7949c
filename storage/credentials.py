"""The credentials that boto3 finds, or does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import NoCredentialsError, PartialCredentialsError

from penstock.errors import PenstockError


@contextmanager
def credentials_sought(without: type[PenstockError]) -> Iterator[None]:
    """Raise `without`, saying what to set, where there are none or half of them: waiting would mend nothing.

    Half of them are found out when a client is made, that there are none when it signs its first request.
    """
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise without("no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
