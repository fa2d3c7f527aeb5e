"""Which handler answers a method and path; a path with an extra slash leads to one without."""

import re
from collections.abc import Awaitable, Callable, Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]

_SLASHES = re.compile(r"(/|%2f)+$", re.IGNORECASE)


class RouteTable:
    """A path without parameters is found by one look-up, one with parameters by its pattern.

    HEAD is served wherever GET is: the HTTP server leaves the body out.
    """

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self._fixed: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, APIRoute]] = []
        for route in routes:
            methods = route.methods or set[str]()
            for method in methods | {"HEAD"} if "GET" in methods else methods:
                if route.param_convertors:
                    self._patterns.append((method, route))
                else:
                    self._fixed[method, route.path] = route.endpoint
        self._paths = frozenset(path for _, path in self._fixed)

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


class SlashRedirect(RedirectResponse):
    """Leads from a request's path to the same without slashes at its end.

    The address is relative. A proxy may serve this path with another scheme, host and prefix.
    Behind several slashes it is the whole path: clients do not agree on `..` there.
    """

    def __init__(self, scope: Scope) -> None:
        path = scope["raw_path"].decode("latin-1")
        bare = _SLASHES.sub("", path)
        slashes, name = path.count("/") - bare.count("/"), bare.rpartition("/")[2]
        target = bare if slashes > 1 else f"../{name}" if slashes else f"./{name}"
        query = scope["query_string"].decode("latin-1")
        super().__init__(target + (f"?{query}" if query else ""))


def redirect_slashes(app: FastAPI) -> None:
    """Make `app` redirect paths that it serves without their last slash."""
    not_found = app.router.not_found

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        bare = {**scope, "path": scope["path"].rstrip("/")}
        known = bare["path"] != scope["path"] and any(
            route.matches(bare)[0] is not Match.NONE for route in app.routes
        )
        others: ASGIApp = SlashRedirect(scope) if known and scope["type"] == "http" else not_found
        await others(scope, receive, send)

    app.router.redirect_slashes = False
    app.router.default = answer
