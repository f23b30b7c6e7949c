"""Messages of object stores, literally, and the events made of them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, MalformedBody
from penstock.object_events import Notification, ObjectEvent, is_stale, read_message, read_notification

AWS = """{"Records":[{"eventVersion":"2.1","eventSource":"aws:s3","awsRegion":"us-west-2",
"eventTime":"1970-01-01T00:00:00.000Z","eventName":"ObjectCreated:Put",
"userIdentity":{"principalId":"AIDAJDPLRKLG7UEXAMPLE"},"requestParameters":{"sourceIPAddress":"127.0.0.1"},
"responseElements":{"x-amz-request-id":"C3D13FE58DE4C810","x-amz-id-2":"FMyUVURIY8/IgAtTv8xRjskZQpcIZ9KG4V5Wp6S7S"},
"s3":{"s3SchemaVersion":"1.0","configurationId":"testConfigRule","bucket":{"name":"scenes",
"ownerIdentity":{"principalId":"A3NL1KOZZKExample"},"arn":"arn:aws:s3:::scenes"},
"object":{"key":"in/S2A+tile%2B1/%C3%A4+%2525.tif","size":1024,"eTag":"d41d8cd98f00b204e9800998ecf8427e",
"versionId":"096fKKXTRTtl3on89fVO.nfljtsv6qko","sequencer":"0055AED6DCD90281E5"}}}]}"""

TEST_EVENT = """{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2014-10-13T15:57:02.089Z","Bucket":"scenes",
"RequestId":"5582815E1AEA5ADF","HostId":"8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR+YstdA6Knx4Ip8EXAMPLE"}"""

EVENT_BRIDGE = """{"version":"0","id":"17793124-05d4-b198-2fde-7ededc63b103","detail-type":"Object Created",
"source":"aws.s3","account":"111122223333","time":"2021-11-12T00:00:00Z","region":"ca-central-1",
"resources":["arn:aws:s3:::scenes"],"detail":{"version":"0","bucket":{"name":"scenes"},
"object":{"key":"in/a b+c%2Bd.tif","size":5,"etag":"b1946ac92492d2347c6235b4d2611184",
"version-id":"IYV3p45BT0ac8hjHg1houSdS1a.Mro8e","sequencer":"617f08299329d189"},"request-id":"N4N7GDK58NMKJ12R",
"requester":"123456789012","source-ip-address":"1.2.3.4","reason":"PutObject"}}"""

MINIO = """{"EventName":"s3:ObjectCreated:Put","Key":"scenes/in/a b+c.tif","Records":[{"eventVersion":"2.0",
"eventSource":"minio:s3","awsRegion":"","eventTime":"2019-10-22T09:27:27Z","eventName":"s3:ObjectCreated:Put",
"userIdentity":{"principalId":"AKIAIOSFODNN7EXAMPLE"},"requestParameters":{"region":"","accessKey":"A"},
"responseElements":{"x-amz-request-id":"15CFEDF8D4736ED9"},"s3":{"s3SchemaVersion":"1.0","configurationId":"Config",
"bucket":{"name":"scenes","ownerIdentity":{"principalId":"A"},"arn":"arn:aws:s3:::scenes"},
"object":{"key":"in%2Fa+b%2Bc.tif","size":224662,"eTag":"5fc7298143efe1276d39a3466d4e255f-1","contentType":"image/tiff",
"userMetadata":{"content-type":"image/tiff"},"versionId":"null","sequencer":"15CFEDF8D5304D1A"}},
"source":{"host":"172.16.118.255","port":"","userAgent":"Mozilla/5.0"}}]}"""

# Of a real gateway, 16.2; older ones send the size as a string.
CEPH = """{"Records":[{"eventVersion":"2.2","eventSource":"ceph:s3","awsRegion":"",
"eventTime":"2026-11-22T02:43:44.405752Z","eventName":"ObjectCreated:Put","userIdentity":{"principalId":"test"},
"requestParameters":{"sourceIPAddress":""},"responseElements":{"x-amz-request-id":"c95b2b3b","x-amz-id-2":"1011-d-d"},
"s3":{"s3SchemaVersion":"1.0","configurationId":"n","bucket":{"name":"scenes","ownerIdentity":{"principalId":"test"},
"arn":"arn:aws:s3:::scenes","id":"c95b2b3b-0e70-4dd9-9c87-314e770405c5.4115.1"},
"object":{"key":"in/\\u00e4 b+c%2Fd&.tif","size":"1","eTag":"9dd4e461268c8034f5c8564e155c67a6","versionId":"",
"sequencer":"E056026B1B661219","metadata":[],"tags":[]}},"eventId":"1795315424.420636.9dd4","opaqueData":""}]}"""


def sns(message: str, **changes: str) -> str:
    envelope = {
        "Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "Message": message,
        "TopicArn": "arn:aws:sns:us-west-2:123456789012:scenes", "Subject": "Amazon S3 Notification",
        "Timestamp": "2012-05-02T00:54:06.655Z", "SignatureVersion": "1", "Signature": "EXAMPLEw6JRN...",
        "UnsubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe",
    }  # fmt: skip
    return json.dumps(envelope | changes)


def record(**changes: Any) -> dict[str, Any]:
    """AWS's record with other fields of its object, or of itself where they are given as such."""
    made: dict[str, Any] = json.loads(AWS)["Records"][0]
    own = {name: changes.pop(name) for name in ("eventName", "eventSource", "s3") if name in changes}
    made["s3"]["object"] |= changes
    return made | own


def keys(*records: Any) -> list[str]:
    return [event.key for event in read_notification({"Records": list(records)}).events]


AWS_EVENT = ObjectEvent("scenes", "in/S2A tile+1/ä %25.tif", "096fKKXTRTtl3on89fVO.nfljtsv6qko", "0055AED6DCD90281E5")


@pytest.mark.parametrize("text", [AWS, sns(AWS), sns(sns(AWS))], ids=["raw", "in SNS", "in SNS twice"])
def test_the_keys_of_aws_records_are_url_encoded(text: str) -> None:
    assert read_message(text) == Notification((AWS_EVENT,))


@pytest.mark.parametrize("text", [EVENT_BRIDGE, sns(EVENT_BRIDGE)], ids=["raw", "in SNS"])
def test_those_of_event_bridge_are_not(text: str) -> None:
    event = ObjectEvent("scenes", "in/a b+c%2Bd.tif", "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e", "617f08299329d189")
    assert read_message(text) == Notification((event,))


def test_minio_encodes_slashes_too_and_calls_no_version_null() -> None:
    assert read_message(MINIO).events == (ObjectEvent("scenes", "in/a b+c.tif", None, "15CFEDF8D5304D1A"),)


def test_minios_own_key_is_not_encoded() -> None:
    alone = {name: value for name, value in json.loads(MINIO).items() if name != "Records"}
    assert read_notification(alone | {"Key": "scenes/in/a b+c%2B.tif"}).events == (
        ObjectEvent("scenes", "in/a b+c%2B.tif"),
    )


def test_ceph_does_not_encode_and_its_sequencer_does_not_order() -> None:
    assert read_message(CEPH).events == (ObjectEvent("scenes", "in/ä b+c%2Fd&.tif"),)


@pytest.mark.parametrize("text", [TEST_EVENT, sns(TEST_EVENT)], ids=["raw", "in SNS"])
def test_a_test_event_asks_for_nothing(text: str) -> None:
    assert read_message(text) == Notification(ignored=1)


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("a+b", "a b"),
        ("a%20b", "a b"),
        ("a%2Bb", "a+b"),
        ("a%252Fb", "a%2Fb"),
        ("a%2Fb", "a/b"),
        ("%E2%98%83.tif", "☃.tif"),
        ("☃.tif", "☃.tif"),
        ("100%.tif", "100%.tif"),
        ("a%3Fb%23c%26d", "a?b#c&d"),
    ],
)
def test_how_a_record_writes_a_key(sent: str, key: str) -> None:
    assert keys(record(key=sent)) == [key]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200))
def test_every_key_comes_through_every_store(key: str) -> None:
    expected = [] if key.endswith("/") else [key]
    for sent in (quote_plus(key), quote_plus(key, safe="/"), quote(key)):
        assert keys(record(key=sent)) == expected
    assert keys(record(key=key, eventSource="ceph:s3")) == expected


@pytest.mark.parametrize(
    "name",
    ["ObjectCreated:Put", "s3:ObjectCreated:CompleteMultipartUpload", "ObjectCreated:Copy", "ObjectRestore:Completed"],
)
def test_after_these_an_object_can_be_read(name: str) -> None:
    assert len(keys(record(eventName=name))) == 1


@pytest.mark.parametrize(
    "name",
    ["ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated", "ObjectRestore:Post", "ObjectTagging:Put",
     "LifecycleExpiration:Delete", "s3:ObjectAccessed:Get", "Replication:OperationFailedReplication"],
)  # fmt: skip
def test_after_these_there_is_nothing_to_do(name: str) -> None:
    assert read_notification({"Records": [record(eventName=name)]}) == Notification(ignored=1)
    assert read_notification({"Records": [{"eventName": name, "s3": {}}]}) == Notification(ignored=1)


@pytest.mark.parametrize("kind", ["Object Deleted", "Object Tags Added", "Object Storage Class Changed"])
def test_event_bridge_tells_of_more_than_new_objects(kind: str) -> None:
    assert read_notification(json.loads(EVENT_BRIDGE) | {"detail-type": kind}) == Notification(ignored=1)


def test_event_bridge_tells_of_objects_that_came_back_from_an_archive() -> None:
    assert len(read_notification(json.loads(EVENT_BRIDGE) | {"detail-type": "Object Restore Completed"}).events) == 1


@pytest.mark.parametrize("key", ["in/", "in/2020%2F", "/"])
def test_a_folder_is_no_object(key: str) -> None:
    assert read_notification({"Records": [record(key=key)]}) == Notification(ignored=1)


def test_of_many_records_in_one_envelope_a_bad_one_spoils_no_other() -> None:
    bad: list[Any] = [
        None, 3, "a", [], {}, {"eventName": "ObjectCreated:Put"}, record(key=""), record(key=7), record(key="%FF"),
        record(key="a%00b"), record(key="x" * 1025), record(s3={"bucket": {"name": ""}, "object": {"key": "a"}}),
        record(s3={"bucket": "scenes", "object": {"key": "a"}}), record(s3=None), record(eventName=None),
    ]  # fmt: skip
    said = read_notification({"Records": [record(key="a"), *bad, record(key="b"), record(eventName="ObjectRemoved:x")]})
    assert [event.key for event in said.events] == ["a", "b"]
    assert (said.unreadable, said.ignored) == (len(bad), 1)


@pytest.mark.parametrize("size", [1, "1", None, "many", -1])
def test_whatever_is_said_of_the_size_is_not_believed(size: Any) -> None:
    assert len(keys(record(size=size, eTag=None))) == 1


@pytest.mark.parametrize("sequencer", [None, "", 17, "not hex", "0" * 65])
def test_a_sequencer_that_is_none_orders_nothing(sequencer: Any) -> None:
    [event] = read_notification({"Records": [record(sequencer=sequencer)]}).events
    assert event.sequencer is None


@pytest.mark.parametrize(
    ("sequencer", "latest", "stale"),
    [
        ("0055AED6DCD90281E5", "0055AED6DCD90281E6", True),
        ("0055AED6DCD90281E5", "0055AED6DCD90281E5", False),
        ("0055AED6DCD90281E6", "0055AED6DCD90281E5", False),
        ("0055", "00551", True),
        ("0056", "00550", False),  # shorter ones are padded at the right, not at the left
        ("00550", "0056", True),
        ("0055aed6", "0055AED7", True),
        (None, "00", False),
        ("00", None, False),
    ],
)
def test_which_of_two_events_of_a_key_is_older(sequencer: str | None, latest: str | None, stale: bool) -> None:
    assert is_stale(sequencer, latest) is stale


@pytest.mark.parametrize("payload", [None, 3, "a", [], {}, {"Records": {}}, {"Type": "Notification"}, {"Event": "x"}])
def test_what_is_no_notification_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a notification"):
        read_notification(payload)


@pytest.mark.parametrize("text", ["", "{", "\ud800", '{"a": 1, "a": 2}', sns("{"), sns("no JSON")])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(MalformedBody):
        read_message(text)


def test_a_body_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not a text"):
        read_message(None)


def test_envelopes_without_end_are_refused() -> None:
    text = AWS
    for _ in range(4):
        text = sns(text)
    with pytest.raises(InvalidRequest):
        read_message(text)


@pytest.mark.parametrize("kind", ["SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_sns_is_not_confirmed_to_anybody(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="SQS"):
        read_message(sns("You have chosen to subscribe", Type=kind))


NAMES = st.sampled_from(
    ["Records", "s3", "bucket", "object", "key", "name", "eventName", "Type", "Message", "detail", "source"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["ObjectCreated:Put", "aws.s3", AWS]),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES | st.text(), inner),
)


@given(ANYTHING)
def test_nothing_that_comes_breaks_it(payload: Any) -> None:
    try:
        said = read_notification(payload)
    except (InvalidRequest, MalformedBody):
        return
    assert all(event.bucket and event.key for event in said.events)
