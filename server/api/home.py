"""`GET /`: the status page for browsers, and for other clients where to go."""

import hashlib
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from typing import Final, NamedTuple

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.schemas.status import Home
from server.service.endpoint import Endpoint, Operation, operation
from server.service.service import json_answer, service_of

PAGE: Final = "page.html"
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page loads files of its own address and no others, holds no script or style of its own, makes
# no markup of texts, and is in no other page's frame.
_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HOME = Endpoint("GET", "/", operation(Home), order=300, needs_key=False)
PAGE_FILE = Endpoint(
    "GET",
    "/status-page/{file}",
    Operation(arguments={"include_in_schema": False}),
    order=310,
    needs_key=False,
)


class PageFile(NamedTuple):
    """One file: its bytes and its headers, of which `etag` changes with the bytes."""

    content: bytes
    headers: dict[str, str]


def read_page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    return {
        entry.name: _page_file(entry.name, entry.read_bytes())
        for entry in files("server.api").joinpath("status_page").iterdir()
        if PurePath(entry.name).suffix in _MEDIA_TYPES
    }


def _page_file(name: str, content: bytes) -> PageFile:
    return PageFile(
        content,
        {
            "content-type": _MEDIA_TYPES[PurePath(name).suffix],
            # Asked for anew each time, so that a daemon's files are of one release.
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "content-security-policy": _POLICY,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


_FILES: Final = read_page_files()


@HOME.answered_by
async def home(request: Request) -> Response:
    """Where to go from here: for browsers, which accept `text/html`, the status page. Neither needs
    an API key, and neither tells anything about the models."""
    if "text/html" in request.headers.get("accept", ""):
        answer = _file_answer(request, _FILES[PAGE])
    else:
        answer = json_answer(Home(needs_key=bool(service_of(request).config.api_keys)))
        answer.headers["cache-control"] = "no-store"
    answer.headers["vary"] = "accept"
    return answer


@PAGE_FILE.answered_by
async def page_file(request: Request) -> Response:
    """A file of the status page."""
    found = _FILES.get(request.path_params["file"])
    if found is None:
        raise RefusalError("not_found", HTTPStatus.NOT_FOUND.phrase)
    return _file_answer(request, found)


def _file_answer(request: Request, file: PageFile) -> Response:
    known = request.headers.get("if-none-match", "").split(",")
    if file.headers["etag"] in (tag.strip().removeprefix("W/") for tag in known):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=file.headers)
    return Response(file.content, headers=file.headers)
