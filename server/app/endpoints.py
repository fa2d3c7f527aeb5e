"""Every endpoint that a module of `server.api` declares."""

import importlib
import pkgutil
from collections.abc import Iterator

import server.api
from server.service.endpoint import Endpoint


def all_endpoints() -> tuple[Endpoint, ...]:
    """In the order of the documentation; the modules are found by listing the package."""
    found = dict.fromkeys(_declared())
    return tuple(sorted(found, key=lambda endpoint: endpoint.order))


def _declared() -> Iterator[Endpoint]:
    for module in pkgutil.walk_packages(server.api.__path__, "server.api."):
        declared = vars(importlib.import_module(module.name)).values()
        yield from (value for value in declared if isinstance(value, Endpoint))
