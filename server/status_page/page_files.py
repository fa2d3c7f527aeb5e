"""The files of the status page, and the headers with which a browser gets them."""

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

PAGE: Final = "page.html"

_MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page loads files of its own address and no others, holds no script or style of its own, makes
# no markup of texts, and is in no other page's frame.
_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)


class PageFile(NamedTuple):
    """One file: its bytes and its headers, of which `etag` changes with the bytes."""

    content: bytes
    headers: dict[str, str]


def read_page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    return {
        entry.name: _page_file(entry.name, entry.read_bytes())
        for entry in files("server.status_page").iterdir()
        if _suffix(entry.name) in _MEDIA_TYPES
    }


def _page_file(name: str, content: bytes) -> PageFile:
    return PageFile(
        content,
        {
            "content-type": _MEDIA_TYPES[_suffix(name)],
            # Asked for anew each time, so that a daemon's files are of one release.
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "content-security-policy": _POLICY,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
