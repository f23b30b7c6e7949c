"""The permissions that the template gives, and which of them are wide. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Statements that allow an action on every resource, by their Sid, with the reason.
REASONS = {
    "LogIn": "ECR: GetAuthorizationToken has no resource; the images themselves are named",
    "CountTasks": "ECS: ListTasks has no resource for tasks; the condition names the cluster",
    "JoinVpc": "Lambda creates network interfaces, which have no name before; NotFromTheCode denies them to the code",
    "FindCluster": "ECS: DiscoverPollEndpoint returns an address only, before the instance is registered",
    "OwnInstances": "ECS gives instances their ids; the cluster is named",
}


def statements(template: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the statements of all roles and policies of identities with the names of their resources."""
    for name, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        documents = [each["PolicyDocument"] for each in properties.get("Policies", [])]
        if resource["Type"] == "AWS::IAM::Policy":
            documents.append(properties["PolicyDocument"])
        for document in documents:
            for statement in document["Statement"]:
                yield name, statement


def faults(template: Mapping[str, Any]) -> list[str]:
    """Return a line for each permission that is wider than it may be. Managed policies are of AWS, and wide."""
    found = [
        f"{name}: managed policy"
        for name, resource in template["Resources"].items()
        if resource.get("Properties", {}).get("ManagedPolicyArns")
    ]
    for name, statement in statements(template):
        if statement["Effect"] != "Allow":
            continue
        found += [f"{name}: action {each}" for each in _listed(statement["Action"]) if "*" in each]
        wide = [text for each in _listed(statement["Resource"]) for text in _texts(each) if _is_wide(text)]
        if wide and statement.get("Sid") not in REASONS:
            found.append(f"{name}: resource {wide[0]}")
    return found


def _is_wide(resource: str) -> bool:
    """Return True for a resource with a wildcard, except in the keys of a bucket that is named."""
    bucket, _, key = resource.partition("/")
    return "*" in (bucket if bucket.endswith(".Arn}") and bucket.startswith("${") else resource) or key.startswith("**")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> list[str]:
    """Return the texts in a value with functions."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [text for each in parts for text in _texts(each)]
