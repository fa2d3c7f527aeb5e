"""The page of a daemon with an API key."""

import pytest

from tests.deploy.status_page.chromium import Chromium, Page
from tests.deploy.status_page.conftest import NASTY
from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import KEY


def enter(page: Page, key: str) -> None:
    page.wait_text("#key-form", "Key")
    page.value("document.getElementById('key').focus()")
    page.type(key)
    page.press("Enter")


@pytest.fixture
def opened(page: Page, guarded: Daemon) -> Page:
    page.open(f"{guarded.url}/")
    enter(page, KEY)
    page.wait_text("#models", NASTY)
    return page


def test_without_the_key_nothing_is_shown_and_no_data_asked_for(page, guarded) -> None:
    page.open(f"{guarded.url}/")
    page.wait_text("#key-form", "needs an API key")
    assert page.value("document.activeElement.id") == "key"
    assert page.text("#board") == ""
    assert "penstock-demo" not in page.value("document.documentElement.outerHTML")
    assert not any(url.endswith("/status") for url in page.requests())
    assert page.complaints() == []
    assert page.text("footer a") == "Health"
    assert "/docs" in page.text("footer")


def test_a_wrong_key_gets_a_sentence_and_is_forgotten(page: Page, guarded: Daemon) -> None:
    page.open(f"{guarded.url}/")
    enter(page, "wrong")
    page.wait_text("#key-error", "This key is not accepted. Check it and try again.")
    assert page.value("sessionStorage.length") == 0
    assert page.text("#board") == ""
    enter(page, KEY)
    page.wait_text("#models", NASTY)
    assert page.text("#key-form") == ""


def test_the_key_lasts_as_long_as_the_tab(opened: Page, guarded: Daemon, browser) -> None:
    assert opened.complaints() == []
    opened.open(f"{guarded.url}/?again")
    opened.wait_text("#models", NASTY)
    stored = opened.value("[localStorage.length, document.cookie, JSON.stringify(sessionStorage)]")
    assert stored == [0, "", f'{{"penstock-key":"{KEY}"}}']
    another = browser.page()
    another.open(f"{guarded.url}/")
    another.wait_text("#key-form", "needs an API key")


def test_the_key_can_be_forgotten(opened: Page) -> None:
    opened.value("document.getElementById('forget').click()")
    opened.wait_text("#key-form", "needs an API key")
    assert opened.value("sessionStorage.length") == 0
    assert opened.text("#board") == ""


def test_a_models_name_is_text(opened: Page) -> None:
    heads = opened.value("[...document.querySelectorAll('#models h3')].map((h) => h.textContent)")
    assert heads == ["penstock-demo", "all-MiniLM-L6-v2", NASTY]
    assert opened.value("document.querySelectorAll('main script').length") == 0
    options = opened.value("[...document.querySelectorAll('#try-model option')].map((o) => o.text)")
    assert options == heads


def test_a_key_that_no_longer_holds_closes_the_page(opened: Page) -> None:
    opened.value("sessionStorage.setItem('penstock-key', 'old')")
    opened.wait_text("#key-error", "This key is not accepted.")
    assert opened.text("#board") == ""
    assert opened.value("sessionStorage.length") == 0


def test_the_policy_holds(opened: Page) -> None:
    """A script of the page's own, which a name would be if it became markup, does not run."""
    violated = opened.value(
        "new Promise((done) => {"
        " document.addEventListener('securitypolicyviolation', (e) => done(e.violatedDirective));"
        " const script = document.createElement('script'); script.append('window.ran = 1');"
        " document.head.append(script) })"
    )
    assert violated in ("script-src-elem", "require-trusted-types-for")
    assert opened.value("window.ran ?? null") is None
    assert opened.value("(() => { try { document.body.innerHTML = 'a' } catch { return 1 } })()")


def test_pages_are_apart(browser: Chromium) -> None:
    """What the other tests rest on: a new page has an empty session."""
    assert browser.page().send("Page.getFrameTree")["frameTree"]["frame"]["url"] == "about:blank"
