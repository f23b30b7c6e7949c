"""The forms of an event's body: that of webhooks, and CloudEvents 1.0. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

#: Media types of the bodies, by their form.
CONTENT_TYPES: Mapping[str, str] = {
    "webhook": "application/json",
    "cloudevents": "application/cloudevents+json; charset=utf-8",
}


def in_format(name: str, body: str, delivery_id: str, base_url: str) -> str:
    """Return an event's body in the form of this name, from that of webhooks.

    A CloudEvent is structured (https://github.com/cloudevents/spec, 1.0.2, in JSON). Its `id` is the delivery's, so
    that every try has the same one; its `source` is the service; its `subject` names the job or other object.
    """
    if name != "cloudevents":
        return body
    event = json.loads(body)
    data = event["data"]
    found = {
        "specversion": "1.0",
        "id": delivery_id,
        "source": base_url,
        "type": f"penstock.{event['type']}",
        "subject": f"{data['object']}/{data['id']}",
        "time": event["timestamp"],
        "datacontenttype": "application/json",
        "data": data,
    }
    return json.dumps(found, separators=(",", ":"))
