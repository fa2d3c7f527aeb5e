"""A path that nothing is at: the answer says so, and what is served in its place."""

from fnmatch import fnmatchcase

import pytest

from server.daemon.application import all_endpoints
from server.http.unknown_paths import UnknownPaths

CHAT = "POST /v1/chat/completions"
NOTHING = "nothing here does what this endpoint of"


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/api/chat", f"use {CHAT} in place of this endpoint of Ollama"),
        ("POST", "/api/generate", "use POST /v1/completions in place of this endpoint of Ollama"),
        ("GET", "/api/tags", "use GET /v1/models in place of this endpoint of Ollama"),
        ("POST", "/api/embed", "use POST /v1/embeddings in place of this endpoint of Ollama"),
        ("DELETE", "/api/delete", f"{NOTHING} Ollama does"),
        ("POST", "/v1/audio/speech", f"{NOTHING} OpenAI does"),
        ("GET", "/v1/fine_tuning/jobs", f"{NOTHING} OpenAI does"),
        ("GET", "/v1/realtime", f"{NOTHING} OpenAI does"),
        ("POST", "/v1/chat", "use POST /v2/chat in place of this endpoint of Cohere"),
        ("POST", "/generate_stream", "use POST /v1/completions in place of this endpoint of TGI"),
        ("POST", "/v1/chat/completions/batch", f"use {CHAT} in place of this endpoint of vLLM"),
        ("POST", "/cohere/v2/chat/render", "use POST /tokenize in place of this endpoint of vLLM"),
        ("GET", "/slots/1", "use GET /status in place of this endpoint of llama.cpp"),
        ("POST", "/chat/completions", f"did you mean {CHAT}?"),
        ("POST", "/completions", "did you mean POST /v1/completions?"),
        ("POST", "/embeddings", "did you mean POST /v1/embeddings?"),
        ("GET", "/models", "did you mean GET /v1/models?"),
        ("POST", "/v1/v1/chat/completions", f"did you mean {CHAT}?"),
        ("POST", "/openai/deployments/a/chat/completions", f"did you mean {CHAT}?"),
        ("POST", "/v1/tokenize", "did you mean POST /tokenize?"),
        ("POST", "/v1/embedding", "did you mean POST /v1/embeddings?"),
        ("POST", "/v1/chat/completion", f"did you mean {CHAT}?"),
        ("GET", "/favicon.ico", "/docs lists the paths"),
        ("GET", "/v1", "/docs lists the paths"),
    ],
)
def test_an_unknown_path_is_named_and_what_is_served_in_its_place(
    deployment, method, path, instead
):
    response = deployment.http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "not_found", None)
    assert error["message"].startswith(f"{method} '{path}' is not served: {instead}")


@pytest.mark.parametrize("path", ["/a%0Ab%E2%80%AE", "/" + "a" * 9000, "/%FF", "/api/" * 1000])
def test_a_strange_path_is_one_short_line(deployment, path):
    response = deployment.http.get(path)
    message = response.json()["error"]["message"]
    assert response.status_code == 404
    assert message.isprintable()
    assert len(message) < 200


def test_a_file_that_the_status_page_lacks_is_named(deployment):
    response = deployment.http.get("/status-page/page.php")
    assert response.status_code == 404
    assert "'page.php'" in response.json()["error"]["message"]


def test_the_table_has_patterns_of_no_served_path_and_endpoints_that_are_served():
    endpoints = all_endpoints()
    served = {f"{endpoint.method} {endpoint.path_format}" for endpoint in endpoints}
    for pattern, _, ours in UnknownPaths(endpoints).foreign:
        assert ours in served | {""}
        assert not any(fnmatchcase(endpoint.path_format, pattern) for endpoint in endpoints)
