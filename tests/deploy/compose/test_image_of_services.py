"""deploy/compose.yaml and the image of the Dockerfile."""

import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.compose.compose_file import PROFILES, daemon, mounts
from tests.project.source_tree import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


@pytest.mark.parametrize("profile", PROFILES)
def test_daemon_uses_what_the_image_has(profile: str) -> None:
    service = daemon(profile)
    assert f"USER {service['user']}\n" in DOCKERFILE
    assert f"HOME={home()}" in DOCKERFILE
    assert mounts(service)[home()] == ("home", "rw")
    check = re.search(r"HEALTHCHECK.*?CMD \[(.*?)\]", DOCKERFILE, re.DOTALL)
    assert check is not None
    assert service["healthcheck"]["test"] == ["CMD", *shlex.split(check[1].replace(",", " "))]
    assert re.search(r'ENTRYPOINT \["tini", "--", "penstock"\]', DOCKERFILE)
    assert service["command"][0] == "serve"
    build = service["build"]
    assert Path(build["context"]) == REPOSITORY
    assert re.search(rf"^FROM \w+ AS {build['target']}$", DOCKERFILE, re.MULTILINE)


def home() -> str:
    """HOME in the image."""
    found = re.search(r"\bHOME=(\S+)", DOCKERFILE)
    assert found is not None
    return found[1]
