"""Requests that are no good as they are: bodies, names and references. Each with the answer that it gets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping

from tests.corpus.outcomes import Failed, Letters, Outcome, Refused
from tests.corpus.texts import body, nested

JSON = "application/json"


def malformed(sentence: str) -> Refused:
    return Refused(400, "malformed_body", sentence)


def invalid(sentence: str) -> Refused:
    return Refused(422, "invalid_request", sentence)


_NO_UTF_8, _NO_TEXT = malformed("the body is not UTF-8"), "that is not text"
_TEXT, _WITH = b'{"model": "letters", "input": {"texts": %s}}', b'{"model": "letters", "input": {"texts": "a"}, %s}'

#: Posted as they are to /v1/jobs.
BODIES: Mapping[str, tuple[bytes, Outcome]] = {
    "nothing": (b"", malformed("the body is not JSON")),
    "a NUL": (b"\0", malformed("the body is not JSON")),
    "half a body": (body()[:-5], malformed("the body is not JSON")),
    "two bodies": (body() * 2, malformed("the body is not JSON")),
    "BOM": (b"\xef\xbb\xbf" + body(), Letters(1 + 2)),
    "UTF-16": (body().decode().encode("utf-16"), _NO_UTF_8),
    "UTF-16 without BOM": (body().decode().encode("utf-16-le"), malformed("the body is not JSON")),
    "lone UTF-16 surrogate": (_TEXT % '"a\ud800"'.encode("utf-8", "surrogatepass"), _NO_UTF_8),
    "Latin-1": (_TEXT % '"Grüße"'.encode("latin-1"), _NO_UTF_8),
    "overlong slash": (_TEXT % b'"\xc0\xaf"', _NO_UTF_8),
    "gzip": (gzip.compress(body(), mtime=0), _NO_UTF_8),
    "escaped surrogate": (_TEXT % rb'"\ud800"', malformed(_NO_TEXT)),
    "escaped surrogates the wrong way round": (_TEXT % rb'"\udc00\ud800"', malformed(_NO_TEXT)),
    "escaped pair": (_TEXT % rb'"\ud83d\udeb0"', Letters(4 + 2)),
    "escaped NUL": (_TEXT % rb'"a\u0000b"', malformed(_NO_TEXT)),
    "NUL in a name": (rb'{"model": "letters", "input": {"a\u0000": 1}}', malformed(_NO_TEXT)),
    "surrogate in metadata": (_WITH % rb'"metadata": {"a": "\ud800"}', malformed(_NO_TEXT)),
    "control character as it is": (_TEXT % b'"a\nb"', malformed("the body is not JSON")),
    "control character escaped": (_TEXT % rb'"a\nb"', Letters(3 + 2)),
    "NaN": (_TEXT % b"NaN", malformed("/input/texts is NaN, which JSON does not have")),
    "infinity": (_TEXT % b"-Infinity", malformed("/input/texts is -Infinity, which JSON does not have")),
    "1e999": (_TEXT % b"1e999", malformed("is too large a number")),
    "an integer of 5000 digits": (_TEXT % (b"1" * 5000), malformed("a number that is too long")),
    "an integer of 4000 digits": (_TEXT % (b"1" * 4000), malformed("is too large a number")),
    "a float of 100000 digits": (_TEXT % (b"0." + b"1" * 100_000), invalid("must be one of")),
    "a NaN as queue_ttl": (_WITH % b'"queue_ttl": NaN', malformed("/queue_ttl is NaN, which JSON does not have")),
    "64 deep": (nested(63), invalid("must be one of")),
    "65 deep": (nested(65), malformed("nested more than 64 deep")),
    "80000 deep": (nested(80_000), malformed("nested more than 64 deep")),
    "400000 open brackets": (b"[" * 400_000, malformed("nested more than 64 deep")),
    "a model named twice": (b'{"model": "csmask", "model": "letters", "input": {"texts": "a"}}', malformed("twice")),
    "an input named twice": (b'{"model": "letters", "input": {"texts": "a", "texts": "b"}}', malformed("twice")),
    "an array": (b"[]", invalid("must be an object")),
    "a number": (b"1", invalid("must be an object")),
    "null": (b"null", invalid("must be an object")),
    "input null": (b'{"model": "letters", "input": null}', invalid("must be an object")),
    "1 MB and a byte": (b" " * 1_000_000 + b"1", Refused(413, "payload_too_large", "the limit of 1000000 bytes")),
    "100000 items": (_TEXT % (b"[" + b'"a",' * 99_999 + b'"a"]'), invalid("has 100000 items; at most")),
    "50000 names": (_TEXT % json.dumps({str(n): n for n in range(50_000)}).encode(), malformed("names; send less")),
    "a name of 100 kB": (body(input={"a" * 100_000: 1}), invalid("is not known to this model")),
    "a model of 100 kB": (body(model="a" * 100_000), invalid("must have at most 161 characters")),
    "a model named ../..": (body(model="../../etc"), Refused(422, "unknown_model", "there is no such model")),
    "metadata of 100 names": (body(metadata={str(n): "" for n in range(100)}), invalid("must have at most 50 items")),
    "metadata that is deep": (body(metadata={"a": {"b": 1}}), invalid("must be a valid string")),
    "an unknown field": (body(__proto__={"admin": True}), invalid("is not known")),
    "a priority of 1e308": (body(priority=1e308), invalid("/priority")),
    "a negative ttl": (body(queue_ttl=-1), invalid("must be greater than 0")),
    "an empty text": (_TEXT % b'""', Letters(2)),
    "no texts": (_TEXT % b"[]", invalid("/input/texts")),
    "a text with a direction": (_TEXT % '"\u202eabc"'.encode(), Letters(6 + 2)),
}  # fmt: skip

#: References that a job names as its medium.
REFERENCES: Mapping[str, tuple[str, Outcome]] = {
    "a path": ("/etc/passwd", Refused(422, "media_refused", "/input/scene")),
    "a relative path": ("../../etc/passwd", Refused(422, "media_refused", "/input/scene")),
    "file:": ("file:///etc/passwd", Refused(422, "media_refused", "/input/scene")),
    "GDAL's curl": ("/vsicurl/http://127.0.0.1/a.tif", Refused(422, "media_refused", "/input/scene")),
    "GDAL's connection": ("GTIFF_DIR:1:/etc/passwd", Refused(422, "media_refused", "/input/scene")),
    "this machine": ("http://127.0.0.1/a.tif", Refused(422, "media_refused", "/input/scene")),
    "ftp:": ("ftp://example.org/a.tif", Refused(422, "media_refused", "/input/scene")),
    "data:": ("data:image/tiff;base64,SUkqAA==", Failed("media_unreadable", "Cannot read TIFF header")),
    "a bucket": ("s3://somebody-elses/a.tif", Refused(422, "media_refused", "/input/scene")),
    "an upload that climbs": ("media://../../../etc/passwd", Refused(422, "media_not_found", "/input/scene")),
    "an upload's neighbour": ("media://a/../b/c.tif", Refused(422, "media_not_found", "/input/scene")),
    "an upload that is not there": ("media://0190-none/a.tif", Refused(422, "media_not_found", "/input/scene")),
    "an upload with a line in it": ("media://a\n/b.tif", Refused(422, "media_not_found", "/input/scene")),
    "nothing": ("", invalid("/input/scene")),
    "3000 characters": ("media://" + "a" * 3000, invalid("/input/scene")),
}

#: Names of files that are uploaded and then read: what is kept of each as the last part of its reference.
NAMES: Mapping[str, tuple[str, str | Refused]] = {
    "climbs": ("../../../etc/passwd", "passwd"),
    "is a folder": ("..", "upload"),
    "is absolute": ("/etc/shadow.tif", "shadow.tif"),
    "is of Windows": ("C:\\windows\\a.tif", "a.tif"),
    "has a line in it": ("a\nb.tif", "a_b.tif"),
    "has a header in it": ("a.tif\r\nSet-Cookie: x=1", "a.tif_Set-Cookie_x_1"),
    "runs backwards": ("a\u202efit.exe", "afit.exe"),
    "has control characters": ("a\x1b[31m\x07.tif", "a_31m_.tif"),
    "is a script": ("<script>alert(1)</script>.tif", "script_.tif"),
    "is of spaces": ("   .tif", "tif"),
    "is of dots": ("....tif", "tif"),
    "has no Latin letters": ("世界.tif", "世界.tif"),
    "has accents": ("Grüße.tif", "Gruße.tif"),
    "is a command": ("$(id).tif;rm -rf ~", "id_.tif_rm_-rf_"),
    "is percent-encoded": ("%2e%2e%2fpasswd", "2e_2e_2fpasswd"),
    "has 1000 characters": ("a" * 996 + ".tif", "a" * 96 + ".tif"),
    "has 2000 characters": ("a" * 2000, invalid("must have at most 1024 characters")),
    "is empty": ("", invalid("must have at least 1 character")),
    "has a NUL": ("a\0.tif", malformed(_NO_TEXT)),
    "has half a character": ("a\ud800.tif", malformed(_NO_TEXT)),
}
