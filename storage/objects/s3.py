"""Objects in an S3 bucket, on boto3. Contract-tested on Ceph's RADOS Gateway.

`if_absent` is `If-None-Match: *`, on single puts and on the completion of multipart uploads. A server that ignores the
condition (Ceph 16 does on completion) still refuses a key that existed when the upload began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.config_tables import S3
from penstock.errors import (
    MediaChanged,
    MediaTooLarge,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreFull,
    ObjectStoreUnavailable,
    PenstockError,
)
from penstock.storage.objects.base import (
    CHUNK_BYTES,
    DEFAULT_CONTENT_TYPE,
    Fetched,
    ObjectInfo,
    ObjectStoreRefused,
    PresignedPut,
    StoredPart,
    content_disposition,
    new_file,
)
from penstock.storage.objects.credentials import credentials_sought

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, MultipartUploadTypeDef

#: Part size of multipart uploads: larger files are uploaded in parts, several at a time.
PART_BYTES = 16 << 20
MAX_PARTS = 10_000
PARTS_AT_A_TIME = 4
CONNECT_S = 3
READ_S = 30
TRIES = 3
#: Keys in one DeleteObjects request.
_DELETE_AT_A_TIME = 1000

_MISSING = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion", "NoSuchUpload"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity"})
_REFUSED = frozenset({
    "AccessDenied", "AllAccessDisabled", "401", "403", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch",
})  # fmt: skip
_CONDITION = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})


def s3_client(
    s3: S3, *, checksums: bool = True, tries: int = TRIES, requester_pays: bool = False, unsigned: bool = False
) -> S3Client:
    """Return a client with short timeouts; safe to share between threads.

    With `checksums`, uploads have the checksums of the settings; without, only those that the protocol requires: a
    presigned link cannot contain the checksum of its future body. With `requester_pays`, the reader pays for transfers;
    `unsigned` requests are for public buckets.
    """
    config = Config(
        signature_version=UNSIGNED if unsigned else "s3v4",
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": tries},
        max_pool_connections=32,
        tcp_keepalive=True,
        request_checksum_calculation=s3.request_checksums if checksums else "when_required",
        s3={"addressing_style": s3.addressing_style},
    )
    # A session of our own, because boto3's default session is not safe for clients of several threads.
    with credentials_sought(ObjectStoreUnavailable):
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=s3.endpoint_url,
            region_name=s3.region,
            aws_access_key_id=s3.access_key_id,
            aws_secret_access_key=s3.secret_access_key.get_secret_value() if s3.secret_access_key else None,
            config=config,
        )
    # botocore loops for ever when a connection ends within the head of `100 Continue` (AWSConnection's
    # _consume_headers, 1.44), and parses the answer after a refusal wrongly (boto/botocore#3755).
    client.meta.events.register_last("before-call.s3", _expect_nothing)
    if requester_pays:
        client.meta.events.register_last("before-call.s3", _pay)
    return client


def _expect_nothing(params: dict[str, Any], **_: object) -> None:
    params["headers"].pop("Expect", None)


def _pay(params: dict[str, Any], **_: object) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"


class S3Store:
    """An `ObjectStore` in a bucket, with `prefix` before every key (empty, or ending in a slash)."""

    def __init__(
        self, client: S3Client, presigner: S3Client, bucket: str, prefix: str = "", *, part_bytes: int = PART_BYTES
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self._client = client
        self._presigner = presigner
        self._part_bytes = part_bytes

    def put_file(self, key: str, path: Path, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store a file, in parts where it is large. A failed upload leaves no parts."""
        size = path.stat().st_size
        if size <= self._part_bytes:
            return self.put_bytes(key, path.read_bytes(), content_type=content_type, if_absent=if_absent)
        if if_absent:
            self._refuse_taken(key)
        with _translated(key, conflict=ObjectExists):
            self._put_parts(key, path, size, content_type, if_absent)
        # Ceph 16 answers the completion with an empty etag.
        return self.head(key)

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store bytes."""
        condition = _if_absent(if_absent)
        with _translated(key, conflict=ObjectExists):
            answer = self._client.put_object(
                Bucket=self.bucket, Key=self.prefix + key, Body=data, ContentType=content_type, **condition
            )
            return _put_info(key, len(data), content_type, answer)

    def get_file(self, key: str, path: Path, *, limit_bytes: int, etag: str | None = None) -> ObjectInfo:
        """Copy an object to a new file."""
        return self._get(key, lambda: path, limit_bytes, -1, etag)[0]

    def fetch(
        self, key: str, place: Callable[[], Path], *, limit_bytes: int, memory_bytes: int, etag: str | None = None
    ) -> Fetched:  # fmt: skip
        """Read a small object, copy a larger one, with one request."""
        info, contents = self._get(key, place, limit_bytes, memory_bytes, etag)
        return Fetched(contents, info.etag)

    def _get(
        self, key: str, place: Callable[[], Path], limit_bytes: int, memory_bytes: int, etag: str | None
    ) -> tuple[ObjectInfo, bytes | Path]:
        with _translated(key, conflict=MediaChanged):
            condition: Any = {} if etag is None else {"IfMatch": f'"{etag}"'}
            answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key, **condition)
            size_bytes = answer["ContentLength"]
            with closing(answer["Body"]) as body:
                if size_bytes > limit_bytes:
                    raise MediaTooLarge.beyond(limit_bytes)
                contents = body.read() if size_bytes <= memory_bytes else _copied(body, place())
            return _info(key, size_bytes, answer), contents

    def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
        """Return an object's bytes."""
        with _translated(key):
            answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] > limit_bytes:
                    raise MediaTooLarge.beyond(limit_bytes)
                return body.read()

    def read(self, key: str, *, start: int = 0, end: int | None = None, etag: str | None = None) -> Iterator[bytes]:
        """Yield a range of an object's bytes."""
        if end is not None and end <= start:
            self.head(key)
            return
        part: Any = {} if (start, end) == (0, None) else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        part |= {} if etag is None else {"IfMatch": f'"{etag}"'}
        with _translated(key, conflict=MediaChanged):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key, **part)
            except ClientError as error:
                if _code(error) == "InvalidRange":
                    return
                raise
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(CHUNK_BYTES)

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of an object."""
        with _translated(key):
            answer = self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
            return _info(key, answer["ContentLength"], answer)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with the prefix, a thousand per request."""
        pages = self._client.get_paginator("list_objects_v2")
        with _translated(prefix):
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix):
                for item in page.get("Contents", ()):
                    key = item["Key"].removeprefix(self.prefix)
                    yield ObjectInfo(key, int(item["Size"]), item["ETag"].strip('"'), item["LastModified"].timestamp())

    def delete(self, key: str) -> None:
        """Delete an object."""
        with _translated(key):
            self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand per request."""
        for first in range(0, len(keys), _DELETE_AT_A_TIME):
            self._delete_some(keys[first : first + _DELETE_AT_A_TIME])

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose key begins with the prefix and return their number."""
        keys = [info.key for info in self.list(prefix)]
        self.delete_many(keys)
        return len(keys)

    def presign_get(self, key: str, *, filename: str, expires_s: int) -> str:
        """Return a link to the store itself."""
        disposition = content_disposition(filename)
        params = {"Bucket": self.bucket, "Key": self.prefix + key, "ResponseContentDisposition": disposition}
        with _translated(key):
            return self._presigner.generate_presigned_url("get_object", Params=params, ExpiresIn=expires_s)

    def presign_put(self, key: str, *, content_type: str, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a link to the store itself; its signature covers size, type and `If-None-Match: *`.

        The store answers 412 where the key is taken, also to a repeat after a lost answer. On a server that ignores the
        condition, a second upload replaces the first until the link expires, even if a job already names the object.
        """
        params = {
            "Bucket": self.bucket,
            "Key": self.prefix + key,
            "ContentType": content_type,
            "ContentLength": size_bytes,
            **_if_absent(True),
        }
        with _translated(key):
            url = self._presigner.generate_presigned_url("put_object", Params=params, ExpiresIn=expires_s)
        headers = {"Content-Type": content_type, "Content-Length": str(size_bytes), "If-None-Match": "*"}
        return PresignedPut(url, expires_s, headers=headers)

    def begin_multipart(self, key: str, *, content_type: str) -> None:
        """Begin a multipart upload unless there is one."""
        with _translated(key):
            if not self._uploads(key):
                self._client.create_multipart_upload(
                    Bucket=self.bucket, Key=self.prefix + key, ContentType=content_type
                )

    def presign_part(self, key: str, number: int, *, size_bytes: int, expires_s: int) -> PresignedPut:
        """Return a link to the store itself; its signature covers the size."""
        with _translated(key):
            params = {**self._upload(key), "PartNumber": number, "ContentLength": size_bytes}
            url = self._presigner.generate_presigned_url("upload_part", Params=params, ExpiresIn=expires_s)
        return PresignedPut(url, expires_s, headers={"Content-Length": str(size_bytes)})

    def parts(self, key: str) -> Sequence[StoredPart]:
        """Return the stored parts, by number."""
        with _translated(key):
            pages = self._client.get_paginator("list_parts").paginate(**self._upload(key))
            found = [part for page in pages for part in page.get("Parts", ())]
        return [StoredPart(part["PartNumber"], part["Size"], part["ETag"].strip('"')) for part in found]

    def complete_multipart(self, key: str, parts: Sequence[StoredPart]) -> None:
        """Complete the multipart upload, on the condition that the key is free."""
        self._refuse_taken(key)
        wanted: Any = {"Parts": [{"PartNumber": part.number, "ETag": part.etag} for part in parts]}
        with _translated(key, conflict=ObjectExists):
            self._client.complete_multipart_upload(**self._upload(key), MultipartUpload=wanted, **_if_absent(True))
        self.abort_multipart(key)

    def abort_multipart(self, key: str) -> None:
        """Abort the multipart uploads to a key."""
        with _translated(key):
            for upload_id in self._uploads(key):
                self._abort(self.prefix + key, upload_id)

    def abort_multiparts(self, prefix: str) -> int:
        """Abort the multipart uploads to all keys under a prefix."""
        with _translated(prefix):
            found = self._listed_uploads(prefix)
            for upload in found:
                self._abort(upload["Key"], upload["UploadId"])
        return len(found)

    def uri(self, key: str) -> str:
        """Return `s3://bucket/key`."""
        return f"s3://{self.bucket}/{self.prefix}{key}"

    def ping(self) -> None:
        """Return if the bucket exists and accepts the credentials."""
        with _translated(""):
            try:
                self._client.head_bucket(Bucket=self.bucket)
            except ClientError as error:
                raise ObjectStoreUnavailable(f"the bucket answers {_code(error)}") from error

    def sweep(self, *, older_than_s: float) -> int:
        """Abort the multipart uploads of dead writers."""
        before_s = time.time() - older_than_s
        with _translated(""):
            found = [each for each in self._listed_uploads("") if each["Initiated"].timestamp() <= before_s]
            for upload in found:
                self._abort(upload["Key"], upload["UploadId"])
        return len(found)

    def _upload(self, key: str) -> Any:
        uploads = self._uploads(key)
        if not uploads:
            raise ObjectNotFound(f"there is no multipart upload to {key!r}")
        return {"Bucket": self.bucket, "Key": self.prefix + key, "UploadId": uploads[0]}

    def _uploads(self, key: str) -> Sequence[str]:
        """Return the ids of the multipart uploads to a key, oldest first: clients that began at once share one."""
        ours = [upload for upload in self._listed_uploads(key) if upload["Key"] == self.prefix + key]
        return [u["UploadId"] for u in sorted(ours, key=lambda u: (u["Initiated"], u["UploadId"]))]

    def _listed_uploads(self, prefix: str) -> Sequence[MultipartUploadTypeDef]:
        """Return the multipart uploads to keys that begin with the prefix."""
        pages = self._client.get_paginator("list_multipart_uploads")
        listed = pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
        return [upload for page in listed for upload in page.get("Uploads", ())]

    def _refuse_taken(self, key: str) -> None:
        with suppress(ObjectNotFound):
            self.head(key)
            raise ObjectExists(f"{key!r} exists already")

    # boto3's own transfer cannot make the completion conditional.
    def _put_parts(self, key: str, path: Path, size: int, content_type: str, if_absent: bool) -> None:
        where: Any = {"Bucket": self.bucket, "Key": self.prefix + key}
        where["UploadId"] = self._client.create_multipart_upload(**where, ContentType=content_type)["UploadId"]
        part_bytes = max(self._part_bytes, ceil(size / MAX_PARTS))

        def send(number: int) -> CompletedPartTypeDef:
            with path.open("rb") as file:
                file.seek((number - 1) * part_bytes)
                answer = self._client.upload_part(**where, PartNumber=number, Body=file.read(part_bytes))
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            parts = _all(send, ceil(size / part_bytes))
            condition = _if_absent(if_absent)
            self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            self._abort(where["Key"], where["UploadId"])
            raise

    def _abort(self, full_key: str, upload_id: str) -> None:
        # `sweep` aborts the upload later if this fails; the caller's error matters more.
        with suppress(ClientError, BotoCoreError):
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=full_key, UploadId=upload_id)

    def _delete_some(self, keys: Sequence[str]) -> None:
        names: Any = {"Objects": [{"Key": self.prefix + key} for key in keys], "Quiet": True}
        with _translated(keys[0]):
            answer = self._client.delete_objects(Bucket=self.bucket, Delete=names)
        for failed in answer.get("Errors", ()):
            raise ObjectStoreUnavailable(f"the object store answers {failed.get('Code')} to a delete")


@contextmanager
def _translated(key: str, *, conflict: type[PenstockError] = ObjectStoreUnavailable) -> Iterator[None]:
    try:
        with credentials_sought(ObjectStoreUnavailable):
            yield
    except ClientError as error:
        code = _code(error)
        if code in _MISSING:
            raise ObjectNotFound(f"there is no object {key!r}") from error
        if code in _CONDITION:
            raise conflict from error
        if code in _FULL:
            raise ObjectStoreFull(f"the object store is full ({code}); free space or raise its quota") from error
        kind = ObjectStoreRefused if code in _REFUSED else ObjectStoreUnavailable
        raise kind(f"the object store answers {code}") from error
    # botocore follows redirects of a server that always answers 301 until the stack ends, and treats an answer that was
    # cut off in its head as a success without headers.
    except (BotoCoreError, RecursionError, KeyError) as error:
        raise ObjectStoreUnavailable from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "an error"))


def _if_absent(if_absent: bool) -> Any:
    return {"IfNoneMatch": "*"} if if_absent else {}


def _copied(body: StreamingBody, path: Path) -> Path:
    with new_file(path) as file:
        for chunk in body.iter_chunks(CHUNK_BYTES):
            file.write(chunk)
    return path


def _info(key: str, size_bytes: int, answer: Any) -> ObjectInfo:
    version = answer.get("VersionId")
    return ObjectInfo(
        key,
        size_bytes,
        answer["ETag"].strip('"'),
        answer["LastModified"].timestamp(),
        answer.get("ContentType", DEFAULT_CONTENT_TYPE),
        None if version == "null" else version,
    )


def _put_info(key: str, size_bytes: int, content_type: str, answer: Any) -> ObjectInfo:
    # The answer to a put has no LastModified; its date header is the nearest value.
    answered = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return _info(key, size_bytes, {**answer, "LastModified": answered, "ContentType": content_type})


def _all(send: Callable[[int], CompletedPartTypeDef], count: int) -> list[CompletedPartTypeDef]:
    with ThreadPoolExecutor(PARTS_AT_A_TIME, thread_name_prefix="s3-part") as pool:
        futures = [pool.submit(send, number) for number in range(1, count + 1)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
