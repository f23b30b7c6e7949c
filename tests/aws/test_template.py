"""The CloudFormation template: its form, its deployment into moto, its permissions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from penstock.api_keys import KeyRecord
from penstock.storage.journal.api_keys import put_key
from tests.aws.deployment import EVERYTHING, REQUIRED, TEMPLATE, Deployment, deployed, skipped, template
from tests.aws.permissions import REASONS, faults, statements

#: Types that moto does not deploy; cfn-lint checks their properties. docs/howto/aws.md lists them.
NOT_DEPLOYED = {
    "AWS::CloudWatch::Alarm",
    "AWS::ECS::CapacityProvider",
    "AWS::ECS::ClusterCapacityProviderAssociations",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::S3::BucketPolicy",
    "AWS::SQS::QueuePolicy",
    "AWS::SecretsManager::Secret",
    "AWS::ServiceDiscovery::PrivateDnsNamespace",
    "AWS::ServiceDiscovery::Service",
}


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("cfn-lint")
    command = [linter, str(path), "--regions", "eu-central-1", "us-east-1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_cfn_lint_finds_nothing() -> None:
    found = lint(TEMPLATE)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ManagedTerminationProtection: ENABLED", "ManagedTerminationProtection: SOMETIMES"),
        ("DependsOn: EventsPolicy", "DependsOn: EventPolicy"),
        ("RetentionInDays: !Ref LogDays", "RetentionInDays: 31"),
        ("Runtime: python3.13", "Runtime: python2.7"),
    ],
)
def test_cfn_lint_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = TEMPLATE.read_text()
    assert right in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(right, wrong, 1))
    assert lint(path).returncode != 0


def test_the_template_is_small_enough_to_deploy_without_a_bucket() -> None:
    assert len(TEMPLATE.read_bytes()) <= 51_200


def test_the_starter_in_the_template_is_the_tested_one() -> None:
    code = template()["Resources"]["Starter"]["Properties"]["Code"]["ZipFile"]
    assert code.strip() == TEMPLATE.with_name("starter.py").read_text().strip()
    assert len(code) <= 4096, "a limit of inline code"


def test_moto_leaves_out_what_the_page_lists(record_property: Callable[[str, object], None]) -> None:
    types = set(skipped(template()["Resources"]).values())
    record_property("figures", "moto does not deploy: " + ", ".join(sorted(types)))
    assert types == NOT_DEPLOYED
    page = (TEMPLATE.parents[2] / "docs" / "howto" / "aws.md").read_text()
    assert [each for each in sorted(types) if each.removeprefix("AWS::") not in page] == []


def test_a_full_deployment_has_its_services_and_task_definitions() -> None:
    with deployed(EVERYTHING) as stack:
        assert stack.status == "CREATE_COMPLETE"
        ecs = stack.client("ecs")
        services = ecs.describe_services(cluster="penstock", services=["api", "keeper", "valkey"])["services"]
        assert {each["serviceName"]: each["desiredCount"] for each in services} == {"api": 2, "keeper": 2, "valkey": 1}
        for name, command in {"Api": ["api"], "Keeper": ["keeper"], "CpuWorker": ["worker"]}.items():
            task = ecs.describe_task_definition(taskDefinition=stack.resources[name])["taskDefinition"]
            (container,) = task["containerDefinitions"]
            assert container["command"] == command
            assert container["user"] == "10001:10001"
        gpu = ecs.describe_task_definition(taskDefinition=stack.resources["GpuWorker"])["taskDefinition"]
        assert gpu["containerDefinitions"][0]["resourceRequirements"] == [{"type": "GPU", "value": "1"}]


def test_settings_of_the_tasks_are_settings_of_penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penstock.config import load_settings

    monkeypatch.chdir(tmp_path)
    with deployed(EVERYTHING) as stack:
        ecs = stack.client("ecs")
        for name in ("Api", "Keeper", "CpuWorker", "GpuWorker"):
            task = ecs.describe_task_definition(taskDefinition=stack.resources[name])["taskDefinition"]
            with monkeypatch.context() as patch:
                for each in task["containerDefinitions"][0]["environment"]:
                    patch.setenv(each["name"], each["value"])
                settings = load_settings()
            assert settings.object_store == f"s3://{stack.resources['Objects']}"
            assert settings.s3.region == "eu-central-1"
            if name in ("Api", "Keeper"):
                (rule,) = settings.drops
                assert rule.bucket == f"s3://{stack.resources['Scenes']}"
                assert rule.queue_url == stack.resources["Events"]
                assert settings.with_keys
            else:
                assert settings.idle_exit_s == 300
                assert settings.s3_input_buckets == (stack.resources["Scenes"],)


def test_tasks_do_not_run_with_the_role_that_reads_secrets() -> None:
    tasks = [each for each in template()["Resources"].values() if each["Type"] == "AWS::ECS::TaskDefinition"]
    roles = [(each["Properties"]["ExecutionRoleArn"], each["Properties"]["TaskRoleArn"]) for each in tasks]
    assert {execution["Fn::GetAtt"][0] for execution, _ in roles} == {"ExecutionRole"}
    assert sorted(task["Fn::GetAtt"][0] for _, task in roles) == [
        "ApiRole", "KeeperRole", "ValkeyRole", "WorkerRole", "WorkerRole"
    ]  # fmt: skip


def _notifications(stack: Deployment, queue: str) -> dict[str, Any]:
    """Return the bucket's notifications in the form of S3's API; moto's CloudFormation leaves them out."""
    arn = stack.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    given = template()["Resources"]["Scenes"]["Properties"]["NotificationConfiguration"]["QueueConfigurations"]
    assert [each["Queue"] for each in given] == [{"Fn::GetAtt": ["Events", "Arn"]}] * len(given)
    return {
        "QueueConfigurations": [
            {
                "QueueArn": arn,
                "Events": [each["Event"]],
                "Filter": {"Key": {"FilterRules": each["Filter"]["S3Key"]["Rules"]}},
            }
            for each in given
        ]
    }


def test_a_dropped_scene_sends_an_event_to_the_queue_of_the_keeper() -> None:
    with deployed(EVERYTHING) as stack:
        s3, sqs = stack.client("s3"), stack.client("sqs")
        bucket, queue = stack.resources["Scenes"], stack.resources["Events"]
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=_notifications(stack, queue))
        sqs.purge_queue(QueueUrl=queue)
        s3.put_object(Bucket=bucket, Key="out/a.tif", Body=b"")
        s3.put_object(Bucket=bucket, Key="in/a.tif", Body=b"II*")
        bodies = [json.loads(each["Body"]) for each in sqs.receive_message(QueueUrl=queue)["Messages"]]
        keys = [unquote_plus(row["s3"]["object"]["key"]) for body in bodies for row in body["Records"]]
        assert keys == ["in/a.tif"]


def test_only_the_bucket_for_scenes_may_write_to_the_queue() -> None:
    (statement,) = template()["Resources"]["EventsPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    bucket = template()["Resources"]["Scenes"]["Properties"]["BucketName"]["Fn::Sub"]
    assert statement["Principal"] == {"Service": "s3.amazonaws.com"}
    assert statement["Action"] == "sqs:SendMessage"
    assert statement["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Sub"].endswith(f":s3:::{bucket}")


def test_buckets_are_private_and_encrypted() -> None:
    with deployed(EVERYTHING) as stack:
        s3 = stack.client("s3")
        for name in ("Objects", "Scenes"):
            blocked = template()["Resources"][name]["Properties"]["PublicAccessBlockConfiguration"]
            assert (len(blocked), set(blocked.values())) == (4, {True})
            assert s3.get_bucket_encryption(Bucket=stack.resources[name])


def test_only_the_load_balancer_is_open_and_only_to_the_given_addresses() -> None:
    with deployed(EVERYTHING) as stack:
        groups = stack.client("ec2").describe_security_groups(
            GroupIds=[each for each in stack.resources.values() if each.startswith("sg-")]
        )["SecurityGroups"]
        ranges = {
            (rule["FromPort"], each["CidrIp"])
            for group in groups
            for rule in group["IpPermissions"]
            for each in rule["IpRanges"]
        }
        assert ranges == {(443, "203.0.113.0/24"), (443, "10.42.0.0/16")}


def test_the_small_deployment_has_no_gpu_no_scenes_and_no_nat() -> None:
    with deployed(REQUIRED) as stack:
        assert stack.status == "CREATE_COMPLETE"
        assert not {"GpuWorker", "GpuGroup", "Scenes", "Events", "KeepScenes", "EcsAgentEndpoint"} & set(
            stack.resources
        )
        services = {
            each["ServiceName"].removeprefix("com.amazonaws.eu-central-1.")
            for each in stack.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
        }
        assert services == {"s3", "ecr.api", "ecr.dkr", "logs", "secretsmanager", "sqs", "ecs"}


def test_a_nat_gateway_replaces_the_interface_endpoints() -> None:
    with deployed({**EVERYTHING, "Internet": "yes"}) as stack:
        (only,) = stack.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
        assert only["VpcEndpointType"] == "Gateway"


def test_a_busy_gpu_instance_is_protected_and_the_pool_may_be_empty() -> None:
    resources = template()["Resources"]
    provider = resources["GpuProvider"]["Properties"]["AutoScalingGroupProvider"]
    assert provider["ManagedTerminationProtection"] == provider["ManagedDraining"] == "ENABLED"
    with deployed(EVERYTHING) as stack:
        (group,) = stack.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        assert group["NewInstancesProtectedFromScaleIn"]
        assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (0, 0, 4)


def test_no_permission_is_wider_than_its_reason() -> None:
    assert faults(template()) == []
    assert {statement.get("Sid") for _, statement in statements(template())} >= set(REASONS), "a reason without use"


def test_workers_cannot_touch_api_keys() -> None:
    policy = template()["Resources"]["NoKeys"]["Properties"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert policy["Roles"] == [{"Ref": "WorkerRole"}]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    objects = MemoryKeys()
    put_key(objects, KeyRecord("k1", "tenant", "name", ("read",), 0.0, None, "digest", "mark"))  # type: ignore[arg-type]
    (key,) = objects.keys
    assert fnmatch(f"${{Objects.Arn}}/{key}", statement["Resource"]["Fn::Sub"].replace("[", "[[]"))


class MemoryKeys:
    """Notes the keys of the objects that are put."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def put_bytes(self, key: str, *_: object, **__: object) -> None:
        self.keys.append(key)


def test_replaced_and_deleted_objects_can_be_had_back_for_a_week() -> None:
    """cfn-lint knows the properties; moto's CloudFormation leaves them out."""
    bucket = template()["Resources"]["Objects"]["Properties"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = [each for each in bucket["LifecycleConfiguration"]["Rules"] if "NoncurrentVersionExpiration" in each]
    assert rule["Status"] == "Enabled"
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    page = (TEMPLATE.parents[2] / "docs" / "howto" / "aws.md").read_text()
    assert "for 7 days" in page


def _first(role: str, found: dict[str, Any]) -> dict[str, Any]:
    statement: dict[str, Any] = found["Resources"][role]["Properties"]["PolicyDocument"]["Statement"][0]
    return statement


@pytest.mark.parametrize(
    "change", [{"Action": "s3:*"}, {"Resource": "*"}, {"Resource": {"Fn::Sub": "arn:aws:s3:::a*"}}]
)
def test_the_check_finds_wide_permissions(change: dict[str, Any]) -> None:
    found = template()
    _first("KeepScenes", found).update(change)
    assert len(faults(found)) == 1


def test_the_check_finds_managed_policies() -> None:
    found = template()
    found["Resources"]["ApiRole"]["Properties"]["ManagedPolicyArns"] = ["arn:aws:iam::aws:policy/PowerUserAccess"]
    assert faults(found) == ["ApiRole: managed policy"]


def test_workers_and_the_api_can_only_read_scenes() -> None:
    actions = {statement["Action"] for name, statement in statements(template()) if name == "ReadScenes"}
    assert actions == {"s3:ListBucket", "s3:GetObject"}
