"""Made series for `promtool test rules`: a release, and the alerts that it raises."""

from typing import Any, NamedTuple

RELEASE, NAMESPACE = "llm", "serving"
_TARGET = {"namespace": NAMESPACE, "job": f"{RELEASE}-penstock", "pod": "pod-0"}
_MODELS = ("penstock-demo", "all-MiniLM-L6-v2")

# A name, labels beside those of the target, and values as promtool writes them: STARTxTIMES or
# START+STEPxTIMES.
Series = tuple[str, dict[str, str], str]


class Scenario(NamedTuple):
    """What differs from a healthy release, and the alerts that fire after so many minutes."""

    name: str
    changes: list[Series]
    firing: list[dict[str, str]]
    minutes: int = 30


def _answers(status: int, rise: int) -> Series:
    labels = {"endpoint": "/v1/completions", "status": str(status)}
    return "penstock_http_requests_total", labels, f"0+{rise}x120"


def _scrapes(values: str) -> Series:
    return "penstock_http_requests_total", {"endpoint": "/metrics", "status": "200"}, values


def _failures(rise: int) -> Series:
    return "penstock_failures_total", {"reason": "engine_dead"}, f"0+{rise}x120"


def _of_model(metric: str, values: str, model: str = _MODELS[0]) -> Series:
    return f"penstock_engine_{metric}", {"model": model}, values


def _alert(name: str, severity: str, model: str | None = None, **labels: str) -> dict[str, str]:
    own = {} if model is None else {"model": model}
    return {"alertname": name, "alertstate": "firing", "severity": severity, **own, **labels}


HEALTHY: list[Series] = [
    *(_of_model("up", "1+0x120", model) for model in _MODELS),
    *(_of_model("restarts_total", "2+0x120", model) for model in _MODELS),
    *(_of_model("stalled_seconds", "0.05+0x120", model) for model in _MODELS),
    *(_of_model("waiting_rows", "3+0x120", model) for model in _MODELS),
    *(_of_model("kv_usage_ratio", "0.4+0x120", model) for model in _MODELS),
    _answers(200, 600),
    _answers(400, 60),
    _failures(1),
    _answers(429, 6),
    _scrapes("0+4x120"),
    # Nobody is woken up because a probe comes before the daemon is ready.
    ("penstock_http_requests_total", {"endpoint": "/health/ready", "status": "503"}, "0+12x120"),
]

_NAMESPACE_ONLY = {"namespace": NAMESPACE}
_JOB = {"namespace": NAMESPACE, "job": _TARGET["job"]}

SCENARIOS = [
    Scenario("healthy", [], []),
    Scenario(
        "one model is gone",
        [_of_model("up", "1x5 _x115")],
        [_alert("PenstockModelDown", "critical", _MODELS[0], **_NAMESPACE_ONLY)],
    ),
    Scenario(
        "one replica of two does not come up",
        [("penstock_engine_up", {"model": _MODELS[0], "pod": "pod-1"}, "0+0x120")],
        [_alert("PenstockReplicaDown", "warning", _MODELS[0], **_TARGET | {"pod": "pod-1"})],
    ),
    Scenario(
        "one copy of two does not come back",
        [
            ("penstock_engine_up", {"model": _MODELS[0], "copy": "0"}, "1+0x120"),
            ("penstock_engine_up", {"model": _MODELS[0], "copy": "1"}, "0+0x120"),
        ],
        [_alert("PenstockReplicaDown", "warning", _MODELS[0], **_TARGET, copy="1")],
    ),
    Scenario(
        "a replica takes no longer than a start may take",
        [("penstock_engine_up", {"model": _MODELS[0], "pod": "pod-1"}, "0+0x120")],
        [],
        minutes=11,
    ),
    Scenario(
        "a daemon ends again and again",
        [_scrapes(" ".join(4 * ["0+4x6"]))],
        [_alert("PenstockRestarting", "warning", **_TARGET)],
        minutes=27,
    ),
    Scenario("a daemon was replaced", [_scrapes("0+4x9 0+4x90")], []),
    Scenario(
        "stages are lost again and again",
        [_of_model("restarts_total", "0x9 1x9 2x4 3x90")],
        [_alert("PenstockEngineRestarting", "warning", _MODELS[0], **_TARGET)],
    ),
    Scenario("stages were lost twice", [_of_model("restarts_total", "0x9 1x9 2x90")], []),
    Scenario(
        "a daemon that was replaced counts from 0", [_of_model("restarts_total", "2x9 0x90")], []
    ),
    Scenario(
        "a step does not end",
        [_of_model("stalled_seconds", "0+1x120")],
        [_alert("PenstockEngineStalled", "critical", _MODELS[0], **_TARGET)],
    ),
    Scenario(
        "a queue grows",
        [_of_model("waiting_rows", "0+10x120")],
        [_alert("PenstockQueueGrowing", "warning", _MODELS[0], **_JOB)],
    ),
    Scenario("a long queue shrinks", [_of_model("waiting_rows", "900-5x120")], []),
    Scenario(
        "the cache is full",
        [_of_model("kv_usage_ratio", "0.99+0x120")],
        [_alert("PenstockKVCacheFull", "warning", _MODELS[0], **_TARGET)],
    ),
    Scenario(
        "the cache was full for a moment", [_of_model("kv_usage_ratio", "0.99x10 0.4x110")], []
    ),
    Scenario("requests fail", [_failures(60)], [_alert("PenstockErrorRate", "critical", **_JOB)]),
    Scenario(
        "requests are refused",
        [_answers(429, 200)],
        [_alert("PenstockRefusals", "warning", **_JOB)],
    ),
    Scenario("clients are wrong", [_answers(400, 6000)], []),
]


def unit_test(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a test of promtool's: exactly these alerts fire."""
    series = {_selector(name, labels): values for name, labels, values in HEALTHY}
    series |= {_selector(name, labels): values for name, labels, values in scenario.changes}
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{scenario.minutes}m",
                "exp_samples": [
                    {"labels": _selector("ALERTS", alert, target={}), "value": 1}
                    for alert in scenario.firing
                ],
            }
        ],
    }


def _selector(name: str, labels: dict[str, str], target: dict[str, str] = _TARGET) -> str:
    written = ", ".join(f'{key}="{value}"' for key, value in sorted((target | labels).items()))
    return f"{name}{{{written}}}"
