"""A daemon from a configuration file: two models, TLS, and keys that no child knows."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.server.certificates import make_certificate

KEY = "sesame-5f0c1e"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    make_certificate(folder)
    models = demo_models()
    (folder / "keys").write_text(f"# the team's\nanother\n{KEY}\n")
    generator = {"model": str(models[GENERATOR_NAME]), "names": ["chat", "gpt-4o"], "threads": 1}
    embedder = {"model": str(models[EMBEDDER_NAME]), "names": ["embed"], "threads": 1}
    tls = {"tls_cert": "server.crt", "tls_key": "server.key"}
    served = {"models": [generator | {"max_model_len": 256}, embedder], "port": 1}
    settings = {**served, "api_key_files": ["keys"], **tls}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    with running("--config", str(folder / "penstock.yaml")) as daemon:
        yield daemon


def test_a_client_of_openai(daemon: Daemon, folder: Path) -> None:
    """Which trusts the daemon's certificate, and no other."""
    assert daemon.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=folder / "server.crt")
    with openai.DefaultHttpxClient(verify=context) as http:
        client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=KEY, http_client=http)
        assert [model.id for model in client.models.list()] == ["chat", "gpt-4o", "embed"]
        pieces = client.completions.create(
            model="gpt-4o", prompt="The function", max_tokens=20, stream=True
        )
        assert "".join(piece.choices[0].text for piece in pieces)
        vectors = client.embeddings.create(model="embed", input=["a", "b" * 200])
        assert len(vectors.data) == 2


def test_plain_http_is_not_spoken(daemon: Daemon) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(daemon.url.replace("https", "http") + "/health")


def test_no_child_knows_a_key(daemon: Daemon) -> None:
    """Neither from its command line, nor its environment, nor the files that it reads."""
    pids = daemon.all_children()
    assert len(pids) == 5
    files: set[Path] = set()
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert KEY.encode() not in command + Path(f"/proc/{pid}/environ").read_bytes()
        files |= {Path(os.fsdecode(word)) for word in command.split(b"\0") if b".json" in word}
    assert len(files) == 5
    assert not any(KEY in file.read_text() for file in files)
    assert KEY not in "".join(daemon.log)


def test_the_welcome_speaks_https(daemon: Daemon) -> None:
    said = "".join(daemon.log)
    assert f"curl -s {daemon.url}/v1/completions" in said
    assert '"Authorization: Bearer $PENSTOCK_API_KEY"' in said
