"""For the tests of what is in deploy/ and of the image; `make test-deploy` runs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.helm import Helm3, Helm4
from tests.deploy.image.build import build, download_packages, make_base
from tests.deploy.podman import Podman


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.deploy)


@pytest.fixture(scope="session")
def helm3(tmp_path_factory: pytest.TempPathFactory) -> Helm3:
    return Helm3(tmp_path_factory.mktemp("helm3"))


@pytest.fixture(scope="session")
def helm4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm4]:
    with Helm4(tmp_path_factory.mktemp("helm4")) as helm:
        yield helm


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    podman = Podman(tmp_path_factory.mktemp("podman"))
    yield podman
    podman.remove_everything()


@pytest.fixture(scope="session")
def cpu_image(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the image of the Dockerfile's target `cpu`, which podman has."""
    folder = tmp_path_factory.mktemp("image")
    packages = folder / "packages"
    packages.mkdir()
    make_base(podman, folder)
    download_packages(podman, packages)
    return build(podman, "cpu", packages)
