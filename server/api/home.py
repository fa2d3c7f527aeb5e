"""`GET /`: the status page for browsers, and for other clients where to go."""

from http import HTTPStatus
from typing import Final

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.schemas.status import Home
from server.service.endpoint import Endpoint, Operation, operation
from server.service.service import json_answer, service_of
from server.status_page.page_files import PAGE, PageFile, read_page_files

HOME = Endpoint("GET", "/", operation(Home), order=300, needs_key=False)
PAGE_FILE = Endpoint(
    "GET",
    "/status-page/{file}",
    Operation(arguments={"include_in_schema": False}),
    order=310,
    needs_key=False,
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
