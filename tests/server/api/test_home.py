"""The daemon's own address: a page for browsers, which has no data, and a few paths for others."""

import re
from mimetypes import guess_type
from pathlib import Path

import httpx
import pytest

import server.api
from tests.server.support import server_config

FILES = {path.name for path in Path(server.api.__path__[0], "status_page").iterdir()}
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def guarded(module_builder):
    """A daemon with a key."""
    model = module_builder.model("secret", "generate")
    return module_builder.open(server_config(model, api_key="sesame"))


def assert_page_headers(answer: httpx.Response) -> None:
    headers = answer.headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert headers["etag"]


def test_a_browser_gets_a_page_without_data_and_without_a_key(guarded) -> None:
    page = guarded.http.get("/", headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["vary"] == "accept"
    assert_page_headers(page)
    assert "secret" not in page.text
    assert guarded.http.get("/", headers=BROWSER | KEY).text == page.text


def test_all_that_the_page_names_is_there(guarded) -> None:
    page = guarded.http.get("/", headers=BROWSER).text
    assert "://" not in page
    named = set(re.findall(r'(?:href|src)="(status-page/[^"]+)"', page))
    scripts = {"page.js"}
    while scripts:
        text = guarded.http.get(f"/status-page/{scripts.pop()}").text
        imported = set(re.findall(r'from "\./([^"]+)"', text))
        scripts |= {name for name in imported if f"status-page/{name}" not in named}
        named |= {f"status-page/{name}" for name in imported}
    assert named | {"status-page/page.html"} == {f"status-page/{name}" for name in FILES}


def test_nothing_in_the_page_runs_without_a_file_of_its_own(guarded) -> None:
    """As the policy asks: no script or style in the markup."""
    page = guarded.http.get("/", headers=BROWSER).text
    assert re.findall(r"<style|style=|\son\w+=|javascript:", page) == []
    assert all("src=" in script for script in re.findall(r"<script[^>]*>", page))


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_the_page(guarded, name: str) -> None:
    answer = guarded.http.get(f"/status-page/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == guess_type(name)[0]
    assert_page_headers(answer)
    known = {"if-none-match": f'"other", W/{answer.headers["etag"]}'}
    again = guarded.http.get(f"/status-page/{name}", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    head = guarded.http.head(f"/status-page/{name}")
    assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("name", ["page.py", "..%2Fhome.py", "__init__.py", ""])
def test_other_files_are_not_there(deployment, name: str) -> None:
    answer = deployment.http.get(f"/status-page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("headers", [{}, {"accept": "*/*"}, {"accept": "application/json"}])
def test_other_clients_are_told_where_to_go(guarded, headers: dict[str, str]) -> None:
    answer = guarded.http.get("/", headers=headers)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert answer.headers["vary"] == "accept"
    home = answer.json()
    assert (home.pop("name"), home.pop("needs_key")) == ("penstock", True)
    for path in home.values():
        assert guarded.http.get(path, headers=KEY).status_code == 200


def test_without_a_key_none_is_needed(deployment) -> None:
    assert deployment.http.get("/").json()["needs_key"] is False


def test_the_open_page_opens_nothing_else(guarded) -> None:
    """`POST /` is TEI's, and needs the key."""
    assert guarded.http.post("/", json={"inputs": "a"}, headers=BROWSER).status_code == 401
    assert guarded.http.get("/status", headers=BROWSER).status_code == 401
