"""As much of a cluster's API as Helm asks in a dry run: which kinds there are, and one object."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.deploy.helm import Manifest

_EMPTY_OPENAPI = b"\x0a\x032.0"  # in protobuf: a document that describes no kind


def _resources(version: str, **kinds: str) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "groupVersion": version,
        "resources": [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
            for name, kind in kinds.items()
        ],
    }


_GANGS = "leaderworkerset.x-k8s.io"
_KINDS = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": _resources("v1", configmaps="ConfigMap", secrets="Secret", services="Service"),
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {"name": _GANGS, "versions": [{"groupVersion": f"{_GANGS}/v1", "version": "v1"}]}
        ],
    },
    f"/apis/{_GANGS}/v1": _resources(f"{_GANGS}/v1", leaderworkersets="LeaderWorkerSet"),
    "/openapi/v3": {"paths": {}},
}


@contextmanager
def api_server(secret: Manifest) -> Generator[str]:
    """The URL of one whose only object is a Secret."""
    place = secret["metadata"]
    path = f"/api/v1/namespaces/{place['namespace']}/secrets/{place['name']}"
    answers = _KINDS | {path: secret}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.partition("?")[0]
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            status = HTTPStatus.OK if asked in answers else HTTPStatus.NOT_FOUND
            kind, body = "application/json", json.dumps(answers.get(asked, missing)).encode()
            if asked == "/openapi/v2":
                status, kind, body = HTTPStatus.OK, "application/octet-stream", _EMPTY_OPENAPI
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
