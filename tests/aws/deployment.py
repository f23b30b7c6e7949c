"""The template deployed into moto, which plays AWS in this process.

moto leaves out resources of types that it does not know, without an error. `skipped` lists them, and `adapted` puts
names in place of their attributes. It also computes `Fn::Cidr`, which moto does not know.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from cfnlint.decode import cfn_yaml
from moto import mock_aws
from moto.cloudformation.parsing import get_model_map

#: A name in `Fn::Sub`.
_NAME_IN_TEXT = re.compile(r"\$\{([A-Za-z0-9.]+)\}")

TEMPLATE = Path(__file__).parents[2] / "infra" / "aws" / "penstock.yaml"
REGION, ACCOUNT, STACK = "eu-central-1", "123456789012", "penstock"

REQUIRED = {
    "DomainName": "penstock.example.org",
    "AllowedCidr": "203.0.113.0/24",
    "Tag": "0.1.0",
}
EVERYTHING = {**REQUIRED, "GpuTag": "0.1.0-cuda", "DropModel": "csmask"}


def template() -> dict[str, Any]:
    """Return the template as plain values, with the long form of functions."""
    return dict(json.loads(json.dumps(cfn_yaml.load(str(TEMPLATE)))))


def skipped(resources: Mapping[str, Any]) -> dict[str, str]:
    """Return the resources of types that moto does not deploy, with their types."""
    return {name: each["Type"] for name, each in resources.items() if each["Type"] not in get_model_map()}


def _name(found: re.Match[str], absent: Mapping[str, str]) -> str:
    return f"absent:{found[1]}" if found[1].partition(".")[0] in absent else found[0]


def adapted(value: Any, absent: Mapping[str, str], cidr: str = "10.42.0.0/16") -> Any:
    """Return the template with networks for `Fn::Cidr`, and names for attributes of absent resources. Pure."""
    if isinstance(value, list):
        return [adapted(each, absent, cidr) for each in value]
    if not isinstance(value, dict):
        return value
    if "Fn::Cidr" in value:
        _, count, bits = value["Fn::Cidr"]
        networks = ipaddress.ip_network(cidr).subnets(new_prefix=32 - int(bits))
        return [str(next(networks)) for _ in range(int(count))]
    if "Fn::Sub" in value:
        return {"Fn::Sub": _NAME_IN_TEXT.sub(lambda found: _name(found, absent), value["Fn::Sub"])}
    if value.get("Ref") in absent:
        return f"absent:{value['Ref']}"
    if "Fn::GetAtt" in value and value["Fn::GetAtt"][0] in absent:
        return "absent:" + ".".join(value["Fn::GetAtt"])
    return {key: adapted(each, absent, cidr) for key, each in value.items()}


def _without(absent: Mapping[str, str], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource that waits for no absent one."""
    waits = resource.get("DependsOn", [])
    kept = [each for each in ([waits] if isinstance(waits, str) else waits) if each not in absent]
    return {**resource, "DependsOn": kept}


@dataclass(frozen=True)
class Deployment:
    """A deployed stack. `resources`: physical ids by logical ids."""

    resources: Mapping[str, str]
    status: str

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION)  # type: ignore[call-overload]


@contextmanager
def deployed(parameters: Mapping[str, str], changed: Mapping[str, Any] | None = None) -> Iterator[Deployment]:
    """Deploy the template, or a changed one, into a moto of its own."""
    wanted = dict(changed or template())
    absent = skipped(wanted["Resources"])
    with mock_aws():
        certificate = boto3.client("acm", region_name=REGION).request_certificate(DomainName="penstock.example.org")
        parameters = {**parameters, "CertificateArn": certificate["CertificateArn"]}
        cloud = boto3.client("cloudformation", region_name=REGION)
        body = adapted(wanted, absent)
        body["Resources"] = {
            name: _without(absent, each) for name, each in body["Resources"].items() if name not in absent
        }
        cloud.create_stack(
            StackName=STACK,
            TemplateBody=json.dumps(body),
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
        )
        (stack,) = cloud.describe_stacks(StackName=STACK)["Stacks"]
        listed = cloud.list_stack_resources(StackName=STACK)["StackResourceSummaries"]
        found = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in listed}
        yield Deployment(found, stack["StackStatus"])
