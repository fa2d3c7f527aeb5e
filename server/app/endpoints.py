"""Every endpoint that a module of `server.api`, `server.cohere`, `server.pooling` or `server.tei`
declares."""

import importlib
import pkgutil
from collections.abc import Iterator

import server.api
import server.cohere
import server.pooling
import server.tei
from server.service.endpoint import Endpoint


def all_endpoints() -> tuple[Endpoint, ...]:
    """In the order of the documentation; each package's modules are found by listing it."""
    found = dict.fromkeys(_declared())
    return tuple(sorted(found, key=lambda endpoint: endpoint.order))


def _declared() -> Iterator[Endpoint]:
    for package in (server.api, server.cohere, server.pooling, server.tei):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            declared = vars(importlib.import_module(module.name)).values()
            yield from (value for value in declared if isinstance(value, Endpoint))
