"""Drop rules: the rule of an object, and rules that get into each other's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings, load_settings
from penstock.config_tables import DropRule
from penstock.errors import ConfigError
from penstock.storage.drop_rules import ObjectPlace, conflicts, key_of, owner, place, require_own_outputs
from penstock.storage.sqs import region_of

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/scenes"


def rule(name: str = "a", **changes: Any) -> DropRule:
    fields = {
        "name": name,
        "bucket": "s3://scenes",
        "prefix": "in/",
        "model": "m",
        "output_prefix": "out/",
        "suffixes": (".tif", ".tiff"),
    }
    return DropRule(**(fields | changes))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://scenes", ObjectPlace("scenes", "in/a.tif")),
        ("s3://scenes/", ObjectPlace("scenes", "in/a.tif")),
        ("s3://scenes/team/one", ObjectPlace("scenes", "team/one/in/a.tif")),
        ("file:///srv/my%20scenes/", ObjectPlace("", "/srv/my scenes/in/a.tif")),
        ("file:///srv/scenes", ObjectPlace("", "/srv/scenes/in/a.tif")),
    ],
)
def test_where_an_object_lies_and_back(address: str, expected: ObjectPlace) -> None:
    made = rule(bucket=address)
    assert place(made, "in/a.tif") == expected
    assert key_of(made, expected) == "in/a.tif"


@pytest.mark.parametrize(
    "found", [ObjectPlace("other", "team/in/a.tif"), ObjectPlace("scenes", "in/a.tif"), ObjectPlace("", "team/a")]
)
def test_an_object_elsewhere_is_none_of_the_rules_store(found: ObjectPlace) -> None:
    assert key_of(rule(bucket="s3://scenes/team"), found) is None


def test_an_object_is_the_first_rules_that_wants_it() -> None:
    rules = [rule("small", prefix="in/small/"), rule("all"), rule("jp2", suffixes=(".jp2",))]

    def names(key: str) -> str | None:
        found = owner(rules, ObjectPlace("scenes", key))
        return found[0].name if found else None

    assert names("in/small/a.tif") == "small"
    assert names("in/a.TIF") == "all"
    assert names("in/small/a.jp2") == "jp2"
    assert names("in/a.tif.json") is None
    assert names("elsewhere/a.tif") is None
    assert owner(rules, ObjectPlace("other", "in/a.tif")) is None


def test_no_rules_output_is_anybodys_object() -> None:
    rules = [rule("first"), rule("second", prefix="out/", output_prefix="more/"), rule("back", prefix="more/")]
    for key in ("out/a.tif/classes.tif", "more/a.tif/classes.tif"):
        assert owner(rules, ObjectPlace("scenes", key)) is None


def test_which_rules_get_into_each_others_way() -> None:
    first, inner = rule("first"), rule("inner", prefix="in/deep/", output_prefix="out2/")
    chained = rule("chained", prefix="out/maps/", output_prefix="last/")
    other_kind, elsewhere = rule("jp2", suffixes=(".jp2",)), rule("elsewhere", bucket="s3://other")
    apart = rule("apart", prefix="in2/", output_prefix="out3/")
    found = list(conflicts([first, inner, chained, other_kind, elsewhere, apart]))
    assert [name for name, _ in found] == ["inner", "chained", "chained"]
    assert "'first'" in found[0][1]


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": "in2/"},
        {"prefix": "in2/", "output_prefix": "out/deep/"},
        {"bucket": "s3://scenes/out", "prefix": "in/", "output_prefix": "more/"},
        {"prefix": "in2/", "suffixes": ("x.tif",)},
    ],
)
def test_results_that_would_replace_each_other_stop_the_start(changes: dict[str, Any]) -> None:
    rules = (rule("first"), rule("second", **changes))
    with pytest.raises(ConfigError, match=r"'second'.*'first'.* replace each other"):
        require_own_outputs(rules)
    assert any(name == "second" and "replace each other" in detail for name, detail in conflicts(rules))


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": "in2/", "output_prefix": "out2/"},
        {"prefix": "in2/", "suffixes": (".jp2",)},
        {"bucket": "s3://other"},
        {"bucket": "s3://other/out"},
    ],
)
def test_results_that_never_meet_are_left_alone(changes: dict[str, Any]) -> None:
    require_own_outputs((rule("first"), rule("second", **changes)))


def test_rules_on_nested_folders_are_compared_like_prefixes() -> None:
    outer = rule("outer", bucket="file:///srv", prefix="scenes/in/", output_prefix="maps/")
    inner = rule("inner", bucket="file:///srv/scenes", prefix="in/new/", output_prefix="done/")
    assert [name for name, _ in conflicts([outer, inner])] == ["inner"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"output_prefix": "in/out/"}, "output_prefix 'in/out/' lies under prefix"),
        ({"output_prefix": ""}, "prefix 'in/' lies under output_prefix"),
        ({"prefix": "out/in/"}, "prefix 'out/in/' lies under output_prefix"),
        ({"prefix": "/in/"}, "'/in/' leads out of the bucket"),
        ({"prefix": "in/../x/"}, "leads out of the bucket"),
        ({"output_prefix": "../out/"}, "'../out/' leads out of the bucket"),
        ({"output_prefix": "/out/"}, "leads out of the bucket"),
        ({"events": "sqs"}, "neither 'webhook' nor the address"),
        ({"events": "https://sqs.eu-central-1.amazonaws.com"}, "neither 'webhook' nor the address"),
        ({"events": "webhook", "bucket": "file:///srv"}, "a folder sends no events"),
    ],
)
def test_what_a_rule_may_not_say(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rule(**changes)


def test_what_tells_of_a_rules_objects() -> None:
    assert rule(events=QUEUE).queue_url == QUEUE
    assert rule(events="webhook").queue_url is None
    assert rule().queue_url is None


def test_one_pair_of_brackets_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text('[drops]\nname = "a"\n')
    with pytest.raises(ConfigError, match=r"drops: .*write \[\[drops\]\]"):
        load_settings()


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two have the name 'a'"):
        Settings(drops=(rule(), rule(prefix="in2/")))


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-central-1.amazonaws.com", "eu-central-1"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("eu-west-1.queue.amazonaws.com", "eu-west-1"),
        ("vpce-0a1b-2c3d.sqs.eu-west-3.vpce.amazonaws.com", "eu-west-3"),
        ("127.0.0.1", None),
        ("queue.example.com", None),
    ],
)
def test_the_region_stands_in_the_queues_address(host: str, region: str | None) -> None:
    assert region_of(host) == region
