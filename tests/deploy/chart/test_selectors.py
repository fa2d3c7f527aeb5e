"""What an object of a release selects or names is there: pods, Services, ports, Deployments."""

from collections.abc import Iterator

import pytest

from tests.deploy.chart.ci_values import NAMES, ci_values
from tests.deploy.chart.selection import DAEMONS, Pod, matches, pods
from tests.deploy.helm import Helm3, Manifest

Release = list[Manifest]


@pytest.fixture(scope="module")
def releases(helm3: Helm3) -> dict[str, Release]:
    return {name: helm3.template(ci_values(name)) for name in NAMES}


def of_kind(release: Release, *kinds: str) -> list[Manifest]:
    return [each for each in release if each["kind"] in kinds]


def objects(releases: dict[str, Release], *kinds: str) -> list[tuple[Release, Manifest]]:
    """Each object of these kinds, with its release; there is at least one of each kind."""
    found = [(release, each) for release in releases.values() for each in of_kind(release, *kinds)]
    assert {each["kind"] for _, each in found} == set(kinds)
    return found


def selected(release: Release, selector: dict, *, kind: str = "") -> list[Pod]:
    return [pod for pod in pods(release) if matches(selector, pod.labels) and kind in pod.kind]


def service(release: Release, name: str) -> Manifest:
    (found,) = [each for each in of_kind(release, "Service") if each["metadata"]["name"] == name]
    return found


def test_a_deployment_selects_its_own_pods(releases: dict[str, Release]) -> None:
    for release, deployment in objects(releases, "Deployment"):
        (pod,) = selected(release, deployment["spec"]["selector"])
        assert pod.workload == deployment["metadata"]["name"]


def test_a_service_selects_the_pods_of_one_workload_that_speak_http(
    releases: dict[str, Release],
) -> None:
    for release, found in objects(releases, "Service"):
        (pod,) = selected(release, {"matchLabels": found["spec"]["selector"]})
        assert pod.kind in DAEMONS
        assert {port["targetPort"] for port in found["spec"]["ports"]} <= pod.ports


def test_a_disruption_budget_is_for_all_pods_of_one_workload(
    releases: dict[str, Release],
) -> None:
    for release, budget in objects(releases, "PodDisruptionBudget"):
        chosen = selected(release, budget["spec"]["selector"])
        assert chosen == [pod for pod in pods(release) if pod.workload == chosen[0].workload]
        assert chosen[0].kind in DAEMONS


def test_the_pods_of_a_gang_reach_each_other_by_all_ports(releases: dict[str, Release]) -> None:
    for release, gang in objects(releases, "LeaderWorkerSet", "RayJob"):
        members = [pod for pod in pods(release) if pod.workload == gang["metadata"]["name"]]
        (policy,) = [
            each["spec"]
            for each in of_kind(release, "NetworkPolicy")
            if selected(release, each["spec"]["podSelector"]) == members
        ]
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            (rule,) = [
                each for each in policy[direction] if each.get("ports") == [{"protocol": "TCP"}]
            ]
            (peer,) = rule[peers]
            assert selected(release, peer["podSelector"]) == members


def test_a_network_policy_is_for_pods_of_the_release(releases: dict[str, Release]) -> None:
    for release, policy in objects(releases, "NetworkPolicy"):
        chosen = selected(release, policy["spec"]["podSelector"])
        assert chosen
        rules = policy["spec"].get("ingress", ())
        named = {port["port"] for rule in rules for port in rule["ports"] if "port" in port}
        assert named <= chosen[0].ports


def test_every_daemon_has_a_network_policy(releases: dict[str, Release]) -> None:
    for name, release in releases.items():
        policies = of_kind(release, "NetworkPolicy")
        wanted = ci_values(name).get("networkPolicy", {}).get("enabled", True)
        for pod in pods(of_kind(release, *DAEMONS)):
            taken = [each for each in policies if matches(each["spec"]["podSelector"], pod.labels)]
            assert bool(taken) == wanted


def test_an_autoscaler_has_its_deployment_alone(releases: dict[str, Release]) -> None:
    """A number of replicas in the Deployment would undo at each upgrade what it decided."""
    for release, scaler in objects(releases, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        (scaled,) = [
            each
            for each in of_kind(release, target["kind"])
            if each["metadata"]["name"] == target["name"]
        ]
        assert scaled["apiVersion"] == target["apiVersion"]
        assert "replicas" not in scaled["spec"]


def test_a_service_monitor_finds_every_service(releases: dict[str, Release]) -> None:
    for release, monitor in objects(releases, "ServiceMonitor"):
        for found in of_kind(release, "Service"):
            assert matches(monitor["spec"]["selector"], found["metadata"]["labels"])
            names = {port["name"] for port in found["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names
        assert monitor["spec"]["namespaceSelector"]["matchNames"] == ["models"]


def test_a_pod_monitor_finds_every_daemon(releases: dict[str, Release]) -> None:
    for release, monitor in objects(releases, "PodMonitor"):
        daemons = of_kind(release, *DAEMONS)
        scraped = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        found = [
            pod for pod in selected(daemons, monitor["spec"]["selector"]) if scraped <= pod.ports
        ]
        assert len(found) == len(daemons)
        assert monitor["spec"]["namespaceSelector"]["matchNames"] == ["models"]


def test_pods_are_spread_among_their_like(helm3: Helm3) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    values = ci_values("two-models") | {"topologySpreadConstraints": [spread]}
    release = helm3.template(values)
    for pod in pods(of_kind(release, "Deployment")):
        (constraint,) = pod.spec["topologySpreadConstraints"]
        assert [each.workload for each in selected(release, constraint["labelSelector"])] == [
            pod.workload
        ]


def backends(route: Manifest) -> Iterator[tuple[str, object]]:
    """The Services that an Ingress or HTTPRoute sends requests to: name and port."""
    for rule in route["spec"]["rules"]:
        if route["kind"] == "HTTPRoute":
            yield from (
                (backend["name"], backend["port"])
                for backend in rule["backendRefs"]
                if backend.get("kind", "Service") == "Service"
            )
        else:
            for path in rule["http"]["paths"]:
                found = path["backend"]["service"]
                yield found["name"], found["port"].get("number", found["port"].get("name"))


def test_a_route_leads_to_a_pool_which_has_the_pods_of_one_workload(
    releases: dict[str, Release],
) -> None:
    for release, pool in objects(releases, "InferencePool"):
        (pod,) = selected(release, pool["spec"]["selector"])
        (container,) = pod.spec["containers"]
        assert pod.kind in DAEMONS
        assert [port["number"] for port in pool["spec"]["targetPorts"]] == [
            port["containerPort"] for port in container["ports"]
        ]
        led = {
            (backend["group"], backend["kind"], backend["name"])
            for route in of_kind(release, "HTTPRoute")
            for rule in route["spec"]["rules"]
            for backend in rule["backendRefs"]
        }
        of_pool = (pool["apiVersion"].partition("/")[0], pool["kind"], pool["metadata"]["name"])
        assert of_pool in led


def test_routes_lead_to_services(releases: dict[str, Release]) -> None:
    for release, route in objects(releases, "HTTPRoute", "Ingress"):
        for name, port in backends(route):
            ports = service(release, name)["spec"]["ports"]
            assert port in {value for each in ports for value in (each["port"], each["name"])}


def test_what_a_pod_mounts_is_there_or_the_operators_own(releases: dict[str, Release]) -> None:
    for name, release in releases.items():
        values = ci_values(name)
        there = {(each["kind"], each["metadata"]["name"]) for each in release}
        for pod in pods(release):
            for volume in pod.spec.get("volumes", ()):
                if "configMap" in volume:
                    assert ("ConfigMap", volume["configMap"]["name"]) in there
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    created = ("PersistentVolumeClaim", claim) in there
                    assert created or claim == values["storage"]["existingClaim"]
            account = pod.spec.get("serviceAccountName", "default")
            assert ("ServiceAccount", account) in there or not values["serviceAccount"]["create"]


# The matching itself


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_labels_are_matched_as_kubernetes_does(selector: dict, taken: bool) -> None:
    assert matches(selector, {"a": "1"}) == taken
