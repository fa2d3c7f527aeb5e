"""Pages of other origins that a browser lets call the daemon: none by default."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, which the pages of `origins` may call; `*` means all pages.

    A preflight is answered here, without an API key: browsers send none with it. No cookies are
    used.
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
