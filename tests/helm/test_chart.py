"""The chart: what it renders is valid, confined, and starts what the command line and the settings know."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.config import Settings, load_settings, require_safe_access
from tests.helm.conftest import CHART, NAMESPACE, ROOT, VALUES, Object, Tools, containers, named, of_kind, pod_templates

KEDA = ROOT.parent / "shared" / "data" / "schemas" / "keda"
#: Kinds that operators define. KEDA's are checked by its own definitions; of Prometheus' there are none to be had here.
CUSTOM = {"ScaledJob", "ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"}
MINIMAL, EVERYTHING = (CHART / "ci" / f"{name}.yaml" for name in ("minimal", "everything"))
#: The oldest release that the chart names, and the one of the kubectl that is installed.
RELEASES = ("1.30", "1.35")


def validate(tools: Tools, folder: Path, objects: list[Object], release: str) -> str:
    """Return the complaints of kubernetes-validate about objects of Kubernetes' own kinds, read strictly."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    done = tools.run("kubernetes-validate", "--strict", "-k", release, path, check=False)
    passed = done.stdout.count(" passed for resource ") + done.stderr.count(" passed for resource ")
    return "" if done.returncode == 0 and passed == len(objects) else done.stdout + done.stderr


@cache
def definition(kind: str) -> Object:
    """Return the schema of one of KEDA's kinds; it refuses fields that it does not name, as the server warns of."""
    path = KEDA / f"{kind.lower()}s.yaml"
    if not path.exists():
        pytest.skip(f"needs KEDA's definitions: {path} is not here")
    schema: Object = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    close(schema)
    return schema


def close(schema: Any) -> None:
    """Let each object with known fields refuse others."""
    if isinstance(schema, dict):
        preserved = schema.get("x-kubernetes-preserve-unknown-fields")
        if "properties" in schema and schema.get("type") == "object" and not preserved:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            close(each)
    elif isinstance(schema, list):
        for each in schema:
            close(each)


def settings_of(objects: list[Object], container: Object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings that a process of this container reads."""
    config = next(each for each in of_kind(objects, "ConfigMap"))
    for name, text in config["data"].items():
        (folder / name).write_text(text)
    for variable in container["env"]:
        if variable["name"].startswith("PENSTOCK_"):
            monkeypatch.setenv(variable["name"], variable.get("value", "redis://from-a-secret:6379/0"))
    monkeypatch.setenv("PENSTOCK_CONFIG", str(folder / "penstock.toml"))
    return load_settings()


def test_helm_lint_finds_nothing(tools: Tools, values: Path) -> None:
    done = tools.run("helm", "lint", "--strict", CHART, "-f", values)

    assert "0 chart(s) failed" in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_knows_every_field(tools: Tools, objects: list[Object], release: str, tmp_path: Path) -> None:
    own = [each for each in objects if each["kind"] not in CUSTOM]
    # KEDA makes the Jobs of a ScaledJob, so that Kubernetes reads them only then.
    jobs = [(each["metadata"], each["spec"]["jobTargetRef"]) for each in of_kind(objects, "ScaledJob")]
    own += [{"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec} for named, spec in jobs]

    assert not validate(tools, tmp_path, own, release)


@pytest.mark.parametrize(
    "change",
    [{"replica": 1}, {"replicas": "two"}, {"template": {"spec": {"containers": [{"name": "a", "imag": "b"}]}}}],
    ids=["unknown", "wrong-type", "unknown-inside"],
)
def test_an_unknown_or_wrong_field_is_found(tools: Tools, change: Object, tmp_path: Path) -> None:
    deployment = named(tools.render("-f", MINIMAL), "Deployment", "penstock-keeper")

    assert validate(tools, tmp_path, [{**deployment, "spec": {**deployment["spec"], **change}}], RELEASES[-1])


def test_keda_knows_every_field(objects: list[Object]) -> None:
    for each in objects:
        if each["apiVersion"].startswith("keda.sh/"):
            jsonschema.validate(each, definition(each["kind"]))


@pytest.mark.parametrize(
    "change",
    [
        {"pollIntervall": 5},
        {"maxReplicaCount": "4"},
        {"triggers": [{"type": "prometheus", "metadata": {"threshold": 1}}]},
    ],
    ids=["unknown", "wrong-type", "number-in-metadata"],
)
def test_an_unknown_or_wrong_field_of_keda_is_found(tools: Tools, change: Object) -> None:
    scaled = of_kind(tools.render("-f", EVERYTHING), "ScaledJob")[0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**scaled, "spec": {**scaled["spec"], **change}}, definition("ScaledJob"))


def test_checkov_finds_nothing_but_the_skipped(tools: Tools, tmp_path: Path) -> None:
    for values in VALUES:
        (tmp_path / values.name).write_text(yaml.safe_dump_all(tools.render("-f", values)))
    done = tools.run("checkov", "--config-file", ROOT / "infra" / "helm" / "checkov.yaml", "-d", tmp_path, check=False)

    assert done.returncode == 0, done.stdout
    assert "Passed checks: 0" not in done.stdout


def test_checkov_finds_a_container_that_may_become_root(tools: Tools, tmp_path: Path) -> None:
    deployment = named(tools.render("-f", MINIMAL), "Deployment", "penstock-keeper")
    containers(deployment["spec"]["template"])[0]["securityContext"]["allowPrivilegeEscalation"] = True
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump(deployment))
    done = tools.run("checkov", "--config-file", ROOT / "infra" / "helm" / "checkov.yaml", "-d", tmp_path, check=False)

    assert done.returncode == 1
    assert "CKV_K8S_20" in done.stdout


def test_pods_are_confined(objects: list[Object]) -> None:
    templates = pod_templates(objects)
    assert len(templates) >= 3
    for name, template in templates.items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(template):
            security = container["securityContext"]
            assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert (security["runAsUser"], security["capabilities"]) == (10001, {"drop": ["ALL"]}), name
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/data", "/tmp"}, name
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_the_api_has_probes(objects: list[Object]) -> None:
    api = containers(named(objects, "Deployment", "penstock-api")["spec"]["template"])[0]

    assert api["livenessProbe"]["httpGet"]["path"] == api["startupProbe"]["httpGet"]["path"] == "/livez"
    assert api["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_worker_has_thirty_seconds_beyond_its_drain(objects: list[Object]) -> None:
    workers = [each for each in pod_templates(objects).values() if containers(each)[0]["name"] == "worker"]
    assert workers
    for template in workers:
        args = containers(template)[0]["args"]
        drain_s = int(args[args.index("--drain") + 1])
        assert template["spec"]["terminationGracePeriodSeconds"] == drain_s + 30


def test_the_command_line_knows_every_argument(objects: list[Object]) -> None:
    for name, template in pod_templates(objects).items():
        for container in containers(template):
            done = CliRunner().invoke(app, [*container["args"], "--help"])
            assert done.exit_code == 0, f"{name}: {container['args']}\n{done.output}"
    assert CliRunner().invoke(app, ["worker", "--idle-exits", "1", "--help"]).exit_code == 2


def test_the_settings_know_every_name(objects: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for template in pod_templates(objects).values():
        for container in containers(template):
            if container["args"][0] not in ("api", "keeper", "worker", "models"):
                continue  # a client
            with monkeypatch.context() as patch:
                settings = settings_of(objects, container, tmp_path, patch)
                require_safe_access(settings)
                assert settings.with_keys
                assert settings.store_url == "s3://penstock"
                assert (str(settings.spool_dir), str(settings.model_cache_dir)) == ("/data/spool", "/cache")
                assert (settings.secret is not None) == (container["args"][0] == "api")


def test_own_settings_arrive_as_they_were_written(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = tools.render("-f", EVERYTHING)
    api = containers(named(objects, "Deployment", "penstock-api")["spec"]["template"])[0]
    settings = settings_of(objects, api, tmp_path, monkeypatch)

    assert (settings.max_upload_bytes, settings.retention_s, settings.store_wait_s) == (20_000_000_000, 86_400, 7200.5)
    assert settings.max_jobs("acme") == 500
    assert settings.takes_tensors("acme")
    assert [rule.name for rule in settings.drops] == ["scenes"]
    assert settings.queues == ("default", "gpu", "texts")
    assert settings.scaling.max_workers == 6, "a pool may grow to its limit"
    assert [str(path) for path in settings.models] == ["/etc/penstock/models.toml"]


def test_a_pool_serves_its_queue_on_its_devices(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = tools.render("-f", CHART / "ci" / "scaled-jobs.yaml")
    template = named(objects, "ScaledJob", "penstock-h100")["spec"]["jobTargetRef"]["template"]
    worker = containers(template)[0]
    settings = settings_of(objects, worker, tmp_path, monkeypatch)

    assert settings.queues == ("h100",)
    assert settings.engine_memory_bytes is None, "the GPU's memory decides"
    assert worker["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 1}
    assert template["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert template["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert worker["args"][-2:] == ["--idle-exit", "600"]


def test_a_worker_without_a_gpu_takes_half_of_its_own_memory(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = tools.render("-f", MINIMAL)
    worker = containers(named(objects, "Deployment", "penstock-cpu")["spec"]["template"])[0]

    assert settings_of(objects, worker, tmp_path, monkeypatch).engine_memory_bytes == 4 * 2**30
    assert worker["resources"]["limits"]["memory"] == "8Gi"


def test_the_api_and_the_keepers_know_the_collector(tools: Tools) -> None:
    told = {
        name.partition("/")[2]
        for name, template in pod_templates(tools.render("-f", EVERYTHING)).items()
        for variable in containers(template)[0]["env"]
        if variable == {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.monitoring:4318"}
    }
    assert told == {"penstock-api", "penstock-keeper"}


def test_scaled_jobs_follow_wanted_workers(tools: Tools) -> None:
    spec = named(tools.render("-f", CHART / "ci" / "scaled-jobs.yaml"), "ScaledJob", "penstock-l4")["spec"]
    (trigger,) = spec["triggers"]

    assert trigger["metadata"] == {
        "url": "http://penstock.models.svc:8080/v1/queues/l4",
        "valueLocation": "wanted_workers",
        "targetValue": "1",
        "authMode": "bearer",
    }
    assert trigger["metricType"] == "AverageValue", "KEDA divides by it; of the type Value it would divide by 0"
    assert spec["scalingStrategy"] == {"strategy": "default"}, "the others add the running Jobs a second time"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 4)
    assert spec["rollout"] == {"strategy": "gradual"}, "a change ends no running Job"
    assert "activeDeadlineSeconds" not in spec["jobTargetRef"]


def test_scaled_objects_follow_wanted_workers_and_leave_time(tools: Tools) -> None:
    objects = tools.render("-f", CHART / "ci" / "scaled-objects.yaml")
    spec = named(objects, "ScaledObject", "penstock-texts")["spec"]
    (trigger,) = spec["triggers"]

    assert trigger["metadata"]["query"] == 'max(penstock_queue_wanted_workers{namespace="models",queue="texts"})'
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == spec["cooldownPeriod"] == 300
    assert "replicas" not in named(objects, "Deployment", "penstock-texts")["spec"], "KEDA sets them"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 6)


def test_the_alerts_are_those_of_the_repository(tools: Tools) -> None:
    (rule,) = of_kind(tools.render("-f", EVERYTHING), "PrometheusRule")

    assert rule["spec"] == yaml.safe_load((ROOT / "infra" / "monitoring" / "alerts.yaml").read_text())


def test_a_packaged_chart_has_the_alerts(tools: Tools, tmp_path: Path) -> None:
    tools.run("helm", "package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    done = tools.run("helm", "template", "penstock", package, "-f", EVERYTHING)

    assert "PenstockRetentionLags" in done.stdout


def test_prometheus_finds_the_job_that_the_alerts_name(tools: Tools) -> None:
    objects = tools.render("-f", EVERYTHING)
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (service,) = of_kind(objects, "Service")

    (endpoint,) = monitor["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "penstock"} in endpoint["relabelings"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]


def test_selectors_find_their_own_pods_only(objects: list[Object]) -> None:
    pods = {name: template["metadata"]["labels"] for name, template in pod_templates(objects).items()}
    for deployment in of_kind(objects, "Deployment"):
        wanted = deployment["spec"]["selector"]["matchLabels"].items()
        found = [name for name, labels in pods.items() if wanted <= labels.items()]
        assert found == [f"Deployment/{deployment['metadata']['name']}"]


def test_no_secret_is_in_the_chart(objects: list[Object]) -> None:
    assert not of_kind(objects, "Secret")
    for template in pod_templates(objects).values():
        for container in containers(template):
            for variable in container["env"]:
                if variable["name"] in ("PENSTOCK_SECRET", "PENSTOCK_REDIS_URL", "PENSTOCK_API_KEY"):
                    assert "secretKeyRef" in variable["valueFrom"], variable


def test_only_the_api_can_be_reached(objects: list[Object]) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "NetworkPolicy")}

    assert {name for name, spec in policies.items() if "ingress" in spec} == {"penstock-api"}
    assert all("Ingress" in spec["policyTypes"] for spec in policies.values())
    covered = {spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for spec in policies.values()}
    for template in pod_templates(objects).values():
        assert template["metadata"]["labels"]["app.kubernetes.io/component"] in covered


def test_a_named_way_out_is_the_only_one(tools: Tools) -> None:
    objects = tools.render("-f", CHART / "ci" / "private-stores.yaml")
    worker = named(objects, "NetworkPolicy", "penstock-worker")["spec"]

    assert worker["policyTypes"] == ["Ingress", "Egress"]
    assert [[each["port"] for each in rule["ports"]] for rule in worker["egress"]] == [[53, 53], [6380, 9000]]


def test_the_notes_lead_to_the_api_and_to_a_command_that_is_there(tools: Tools) -> None:
    done = tools.run(
        "helm", "install", "penstock", CHART, "--dry-run=client", "--namespace", NAMESPACE, "--values", MINIMAL
    )
    notes = done.stdout.partition("NOTES:\n")[2]
    (command,) = re.findall(r"deploy/penstock-api -- penstock (.*)", notes)

    assert "the Service penstock, port 8080, in the namespace models" in notes
    assert "https://penstock.example.org" in notes
    assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0


def test_two_releases_do_not_share_names(tools: Tools) -> None:
    def names(release: str) -> set[str]:
        done = tools.run("helm", "template", release, CHART, "-f", MINIMAL)
        return {
            f"{each['kind']}/{each['metadata']['name']}"
            for each in yaml.load_all(done.stdout, yaml.CSafeLoader)
            if each
        }

    assert names("penstock").isdisjoint(names("penstock-b"))
    assert all(name.split("/")[1].startswith("north-penstock") for name in names("north"))


SCALED = {"pools": {"cpu": {"queue": "default", "mode": "ScaledJob"}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": {"api": "registry.example.org/penstock-api"}}, "images/api"),
        ({"images": {"worker": "penstock-worker:latest"}}, "images/worker"),
        ({"publicUrl": "penstock.example.org"}, "publicUrl"),
        ({"objectStore": "file:///data/objects"}, "objectStore"),
        ({"secrets": {"signing": {"name": None}}}, "name"),
        ({"secrets": {"redis": {"value": "redis://secret"}}}, "value"),
        ({"settings": {"secret": "text"}}, "secret"),
        ({"settings": {"redis_url": "redis://:password@host"}}, "redis_url"),
        ({"settings": {"s3": {"secret_access_key": "text"}}}, "s3"),
        ({"settings": {"access": "open"}}, "access"),
        ({"catalogues": {"penstock.toml": ""}}, "penstock.toml"),
        ({"otel": {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"}}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"otel": {"PENSTOCK_SECRET": "text"}}, "PENSTOCK_SECRET"),
        ({"pools": None}, "pools"),
        ({"pools": {"Cpu": {"queue": "default"}}}, "Cpu"),
        ({"pools": {"api": {"queue": "default"}}}, "api"),
        ({"pools": {"cpu": {"queue": None}}}, "queue"),
        ({"pools": {"cpu": {"queue": "a/b"}}}, "queue"),
        ({"pools": {"cpu": {"mode": "Job"}}}, "mode"),
        ({"pools": {"cpu": {"drainSeconds": -1}}}, "drainSeconds"),
        ({"pools": {"cpu": {"memoryGi": "8Gi"}}}, "memoryGi"),
        ({"pools": {"cpu": {"gpu": {"count": 1}}}}, "gpu"),
        ({"pools": {"cpu": {"replicas": 2}}}, "replicas"),
        ({"pools": {"cpu": {"env": [{"name": "PENSTOCK_REDIS_URL", "value": "redis://host"}]}}}, "env"),
        ({"networkPolicy": {"egress": {"public": ["everything"]}}}, "public"),
        (SCALED, "autoscaling.apiKey.name"),
        ({**SCALED, "autoscaling": {"scaler": "prometheus"}}, "autoscaling.prometheus.address"),
        ({"pools": {"cpu": {"mode": "ScaledJob", "min": 5, "max": 4}}}, "min is above max"),
        ({"pools": {"more": {"queue": "default", "mode": "ScaledJob"}}}, "another pool serves the queue default"),
        ({"pools": {"a": {"queue": "default", "mode": "ScaledJob"}}}, "another pool serves the queue default"),
        ({"pools": {"cpu": {"modelCache": {"claim": "a", "hostPath": "/b"}}}}, "modelCache"),
        ({"pools": {"cpu": {"labels": {"penstock/pool": "other"}}}}, "penstock/pool"),
        ({"pools": {"cpu": {"volumes": [{"name": "data", "emptyDir": {}}]}}}, "volumes"),
        ({"api": {"labels": {"app.kubernetes.io/component": "x"}}}, "app.kubernetes.io/component"),
        ({"api": {"env": [{"name": "PENSTOCK_SECRET", "value": "text"}]}}, "env"),
        ({"keeper": {"replica": 3}}, "replica"),
        ({"workers": {"shm": 1}}, "shm"),
        ({"nameOverride": "Upper"}, "nameOverride"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.apiKey.name"),
        ({"test": {"enabled": True}}, "test.apiKey.name"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_wrong_values_are_refused(tools: Tools, change: Object, words: str, tmp_path: Path) -> None:
    assert words in tools.refusal(tmp_path, MINIMAL, change)


class TestFittedIntoACluster:
    """The values of `ci/fitted.yaml`, each where it belongs."""

    @pytest.fixture
    def fitted(self, tools: Tools) -> list[Object]:
        return tools.render("-f", CHART / "ci" / "fitted.yaml")

    def test_an_ingress_leads_from_the_public_address_to_the_api(self, fitted: list[Object]) -> None:
        spec = named(fitted, "Ingress", "penstock")["spec"]
        assert spec["tls"] == [{"hosts": ["penstock.example.org"], "secretName": "penstock-tls"}]
        (rule,) = spec["rules"]
        (path,) = rule["http"]["paths"]
        assert (rule["host"], path["path"], spec["ingressClassName"]) == ("penstock.example.org", "/", "nginx")
        service = path["backend"]["service"]
        ports = named(fitted, "Service", service["name"])["spec"]["ports"]
        assert service["port"]["name"] in [port["name"] for port in ports]

    @pytest.mark.parametrize(
        ("url", "host", "path"),
        [("http://host.example:8443/sub", "host.example", "/sub"), ("https://h.example", "h.example", "/")],
    )
    def test_an_ingress_has_the_host_and_the_path_of_the_address(
        self, tools: Tools, url: str, host: str, path: str
    ) -> None:
        objects = tools.render("-f", MINIMAL, "--set", f"ingress.enabled=true,publicUrl={url}")
        (rule,) = named(objects, "Ingress", "penstock")["spec"]["rules"]
        assert (rule["host"], rule["http"]["paths"][0]["path"]) == (host, path)

    def test_a_name_replaces_that_of_the_release(self, tools: Tools) -> None:
        objects = tools.render("-f", MINIMAL, "--set", "nameOverride=inference")
        names = [each["metadata"]["name"] for each in objects]
        assert all(name.split("-")[0] == "inference" for name in names)
        accounts = {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
        assert {t["spec"]["serviceAccountName"] for t in pod_templates(objects).values()} == accounts

    def test_an_account_that_exists_is_used_and_not_made(self, fitted: list[Object]) -> None:
        assert {each["metadata"]["name"] for each in of_kind(fitted, "ServiceAccount")} == {
            "penstock-api", "penstock-keeper",
        }  # fmt: skip
        workers = named(fitted, "Deployment", "penstock-steady")["spec"]["template"]["spec"]
        assert workers["serviceAccountName"] == "penstock-irsa"

    def test_models_lie_in_a_claim_or_in_a_folder_of_the_node(self, fitted: list[Object]) -> None:
        def cache(pool: str) -> Object:
            spec = named(fitted, "Deployment", f"penstock-{pool}")["spec"]["template"]["spec"]
            assert {"name": "cache", "mountPath": "/cache"} in spec["containers"][0]["volumeMounts"]
            (found,) = [volume for volume in spec["volumes"] if volume["name"] == "cache"]
            return found

        assert cache("texts") == {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
        assert cache("steady") == {"name": "cache", "hostPath": {"path": "/mnt/models", "type": "Directory"}}

    def test_pods_are_placed_and_named_as_asked(self, fitted: list[Object]) -> None:
        pods = {name.partition("/")[2]: each for name, each in pod_templates(fitted).items()}
        api, keeper, worker = (pods[f"penstock-{name}"] for name in ("api", "keeper", "texts"))
        assert api["metadata"]["labels"]["team"] == worker["metadata"]["labels"]["team"] == "earth"
        assert api["metadata"]["annotations"]["example.org/scrape"] == "no"
        assert api["spec"]["priorityClassName"] == "serving"
        assert "nodeAffinity" in api["spec"]["affinity"]
        assert api["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
        assert "topologySpreadConstraints" not in keeper["spec"]
        assert worker["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
        for pod in (api, worker):
            assert "hosts" in [volume["name"] for volume in pod["spec"]["volumes"]]
            assert "/etc/hosts.d" in [mount["mountPath"] for mount in containers(pod)[0]["volumeMounts"]]
        assert {"name": "TZ", "value": "UTC"} in containers(api)[0]["env"]
        shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
        assert shm in worker["spec"]["volumes"]

    def test_containers_run_before_the_own_one(self, tools: Tools, tmp_path: Path) -> None:
        before = {"name": "fetch", "image": "registry.example.org/fetch:1", "command": ["fetch"]}
        given = tmp_path / "values.yaml"
        given.write_text(json.dumps({name: {"initContainers": [before]} for name in ("api", "keeper", "workers")}))
        pods = pod_templates(tools.render("-f", MINIMAL, "-f", given))
        assert [each["spec"].get("initContainers") for name, each in pods.items() if "publish" not in name] == [
            [before], [before], [before],
        ]  # fmt: skip

    def test_a_rollout_and_a_silent_scaler_behave_as_asked(self, fitted: list[Object]) -> None:
        spec = named(fitted, "Deployment", "penstock-texts")["spec"]
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": "50%"}
        assert spec["progressDeadlineSeconds"] == 7200
        scaled = named(fitted, "ScaledObject", "penstock-texts")["spec"]
        assert scaled["fallback"] == {"failureThreshold": 4, "replicas": 2}

    def test_an_identity_of_a_public_service_opens_its_port_for_all_pods(self, fitted: list[Object]) -> None:
        for name, ports in (("worker", {53, 6379, 443}), ("keeper", {53, 6379, 80, 443}), ("api", {53, 6379, 443})):
            rules = named(fitted, "NetworkPolicy", f"penstock-{name}")["spec"]["egress"]
            assert {each["port"] for rule in rules for each in rule["ports"]} == ports


def test_values_that_are_required_are_asked_for(tools: Tools) -> None:
    done = tools.template(check=False)

    assert done.returncode != 0
    for name in ("images/api", "publicUrl", "objectStore", "pools"):
        assert name in done.stderr


def test_the_values_that_the_tests_change_are_accepted(tools: Tools, tmp_path: Path) -> None:
    assert not tools.refusal(tmp_path, MINIMAL, {})
    assert [path.stem for path in VALUES] == [
        "everything", "fitted", "minimal", "private-stores", "scaled-jobs", "scaled-objects",
    ]  # fmt: skip
