"""`helm test`: each daemon is ready and serves its models, each by what it does.

DAEMONS is JSON, [{"url": ..., "models": [...]}]; API_KEYS is a file of keys, and the first is sent.
A model that completes no text is asked for an embedding, and one that does neither for tokens.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any

REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"prompt": "Hello", "max_tokens": 4}, "choices"),
    "/v1/embeddings": ({"input": "Hello"}, "data"),
    "/tokenize": ({"prompt": "Hello"}, "tokens"),
}
"""Path -> the body without its model, and the field of the answer that must not be empty."""


def main() -> None:
    """Exits with a line that says what is wrong."""
    for daemon in json.loads(os.environ["DAEMONS"]):
        url, models = daemon["url"], daemon["models"]
        status, answer = ask(f"{url}/health/ready")
        if status != 200:
            sys.exit(f"{url} is not ready: {status} {answer}")
        served = [model["id"] for model in ask(f"{url}/v1/models")[1]["data"]]
        if served != models:
            sys.exit(f"{url} serves {served}, not {models}")
        for model in models:
            check_model(url, model)


def check_model(url: str, model: str) -> None:
    """Ask the model for the first thing that it serves."""
    for path, (body, field) in REQUESTS.items():
        status, answer = ask(url + path, {"model": model, **body})
        if status == 400 and answer["error"]["code"] == "wrong_endpoint":
            continue
        if status != 200 or not answer[field]:
            sys.exit(f"{url}{path} of {model}: {status} {answer}")
        print(f"{url}{path} of {model}: fine")
        return
    sys.exit(f"{url}: {model} serves none of {', '.join(REQUESTS)}")


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    keys = map(str.strip, os.environ.get("API_KEYS", "").splitlines())
    key = next((key for key in keys if key and not key.startswith("#")), None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 (a URL of the chart)
    try:
        with urllib.request.urlopen(request, timeout=120, context=tls()) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def tls() -> ssl.SSLContext:
    """The daemon's certificate has the name that its clients use, not the Service's."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


main()
