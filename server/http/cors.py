"""Which pages of other origins a browser lets call the daemon: none, unless asked for."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, which the pages of `origins` may call; `*` means all pages.

    A preflight is answered here, without an API key: browsers send none with it. Cookies are not
    asked for.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )
