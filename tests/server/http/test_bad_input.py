"""What may come over the wire; the unit tests of bodies and fields are beside this one."""

import gzip
import itertools
import json
import threading

import httpx
import pytest


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error", "detail"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize(
    ("path", "model", "code", "param", "mentions"),
    [
        ("/v1/completions", "nobody", "model_not_found", "model", "writer, embedder, ranker"),
        ("/v1/completions", "embedder", "wrong_endpoint", "model", "/v1/embeddings, /v1/rerank"),
        ("/v1/embeddings", "writer", "wrong_endpoint", "model", "serves /v1/completions"),
        ("/v1/embeddings", "ranker", "wrong_endpoint", "model", "serves /v1/rerank"),
        ("/v1/rerank", "writer", "wrong_endpoint", "model", "serves /v1/completions"),
        ("/tokenize", "nobody", "model_not_found", "model", "writer"),
    ],
)
def test_the_wrong_model(deployment, path, model, code, param, mentions):
    body = {"model": model, "prompt": "a", "input": "a", "query": "a", "documents": ["a"]}
    error = error_of(deployment.post(path, body), 404 if code == "model_not_found" else 400)
    assert (error["code"], error["param"]) == (code, param)
    assert mentions in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        *[{"content-type": kind} for kind in ("application/json", "text/plain")],
        *[{"content-encoding": encoding} for encoding in ("identity", "")],
        {},
    ],
)
def test_json_is_json_whatever_it_is_called(deployment, headers):
    response = deployment.http.post("/v1/embeddings", content=b'{"input": "a"}', headers=headers)
    assert response.status_code == 200


def test_a_body_that_is_too_large(deployment):
    body = b'{"input": "' + b"a" * (10 << 20) + b'"}'
    response = deployment.http.post("/v1/embeddings", content=body)
    assert error_of(response, 413)["code"] == "body_too_large"
    chunks = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    error_of(deployment.http.post("/v1/embeddings", content=chunks), 413)
    assert deployment.http.get("/version").status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "identity, gzip"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_a_compressed_body(deployment, encoding, path):
    headers = {"content-encoding": encoding}
    response = deployment.http.post(path, content=gzip.compress(b"{}"), headers=headers)
    assert (response.status_code, response.headers["accept-encoding"]) == (415, "identity")
    assert f"content-encoding: {encoding}" in response.text


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
def test_a_body_that_is_far_too_large_is_not_read(deployment, expect):
    with deployment.connect() as client:
        length = b"content-length: 1000000000\r\n"
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\n" + length + expect + b"\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_a_body_without_end_is_cut(deployment):
    with deployment.connect() as client:
        client.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
        for _ in range(34):
            client.sendall(chunk)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_bad_requests_disturb_nobody(deployment, say):
    """A steady client's answers do not change while another sends junk."""
    say("The quick brown fox")
    deep = b'{"prompt": "a", "x": ' + b"[" * 500_000 + b"}"
    junk = [deep, b"\xff" * 1000, b"{" * 1000, b'{"input": ""}', b'{"prompt": [[[]]]}']
    junk += [b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "\\ud800"}']
    paths = ("/v1/completions", "/v1/embeddings")
    stop = threading.Event()
    statuses: list[int] = []

    def send_junk() -> None:
        with httpx.Client(base_url=deployment.api.url) as http:
            while not stop.is_set():
                for path, content in itertools.product(paths, junk):
                    statuses.append(http.post(path, content=content).status_code)

    thread = threading.Thread(target=send_junk)
    thread.start()
    try:
        asked = (deployment.post("/v1/completions", {"prompt": "a"}) for _ in range(30))
        answers = {json.dumps(answer.json()["choices"]) for answer in asked}
    finally:
        stop.set()
        thread.join()
    assert len(answers) == 1
    assert set(statuses) == {400}
