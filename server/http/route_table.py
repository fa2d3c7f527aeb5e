"""Which handler answers a method and path."""

from collections.abc import Awaitable, Callable, Iterable

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

Handler = Callable[[Request], Awaitable[Response]]


class RouteTable:
    """A path without parameters is found by one look-up, one with parameters by its pattern.

    `operations` are the methods and paths that are served, parameters written `{name}`. HEAD is
    served wherever GET is: the HTTP server leaves the body out.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """Routes of other kinds are left out: a router included into another is one in some
        releases of FastAPI."""
        self.operations: set[tuple[str, str]] = set()
        self._fixed: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, APIRoute]] = []
        for route in routes:
            if isinstance(route, APIRoute):
                for method in _methods(route):
                    self._add(method, route)
        self._paths = frozenset(path for _, path in self._fixed)

    def _add(self, method: str, route: APIRoute) -> None:
        self.operations.add((method, route.path_format))
        if route.param_convertors:
            self._patterns.append((method, route))
        else:
            self._fixed[method, route.path] = route.endpoint

    def find(self, scope: Scope) -> Handler | None:
        """The handler for `scope`, which gets the path's parameters."""
        handler = self._fixed.get((scope["method"], scope["path"]))
        if handler is not None:
            return handler
        for method, route in self._patterns:
            if method == scope["method"]:
                match, found = route.matches(scope)
                if match is not Match.NONE:
                    scope.update(found, route=route)
                    return route.endpoint
        return None

    def methods(self, scope: Scope) -> set[str]:
        """The methods that are served at the path of `scope`, none for an unknown path."""
        patterns = {
            method for method, route in self._patterns if route.path_regex.match(scope["path"])
        }
        return patterns | {method for method, path in self._fixed if path == scope["path"]}

    def endpoint(self, scope: Scope) -> str:
        """The path in metrics, whatever the method: with parameters written `{name}`."""
        if scope["path"] in self._paths:
            return scope["path"]
        route = scope.get("route")
        return route.path_format if isinstance(route, APIRoute) else "other"


def _methods(route: APIRoute) -> set[str]:
    methods = set(route.methods or ())
    return methods | {"HEAD"} if "GET" in methods else methods
