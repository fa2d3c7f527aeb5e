"""A Prometheus job as the operator makes it of a rendered monitor."""

import re
from typing import Any

from tests.deploy.helm import Manifest

_ENDPOINTS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}


def scrape_job(monitor: Manifest, address: str, ca_file: str | None = None) -> dict[str, Any]:
    """The job that scrapes a pod at `address`. The operator first gives targets labels of its own,
    `endpoint` among them, then applies the monitor's relabelings."""
    (endpoint,) = monitor["spec"][_ENDPOINTS[monitor["kind"]]]
    name = monitor["metadata"]["name"]
    labels = {
        "namespace": monitor["metadata"]["namespace"],
        "service": name,
        "pod": f"{name}-0",
        "container": "penstock",
        "endpoint": endpoint["port"],
        "job": "given by the operator",
    }
    job = {
        "job_name": name,
        "scheme": endpoint["scheme"],
        "metrics_path": endpoint["path"],
        "static_configs": [{"targets": [address], "labels": labels}],
        "relabel_configs": [
            {_snake(key): value for key, value in rule.items()} for rule in endpoint["relabelings"]
        ],
    }
    if ca_file is not None:
        job["tls_config"] = {
            "ca_file": ca_file,
            "server_name": endpoint["tlsConfig"]["serverName"],
        }
    return job


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
