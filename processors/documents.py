"""JSON files of users and plugins."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import MediaUnreadable


def parse_json(text: str, what: str) -> Any:
    """Return the data of a JSON text; raise `MediaUnreadable` if it is invalid, too deep or has too long a number."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise MediaUnreadable(f"The {what} is not JSON: {error}.") from error
    except RecursionError as error:
        raise MediaUnreadable(f"The {what} is nested too deeply.") from error
    except ValueError as error:  # more than 4300 digits
        raise MediaUnreadable(f"The {what} holds a number that is too long.") from error
