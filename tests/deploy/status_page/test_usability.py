"""Keyboard, contrast, narrow windows."""

import httpx
import pytest

from tests.deploy.status_page.chromium import Page
from tests.deploy.status_page.conftest import axe_source
from tests.deploy.status_page.test_board import load, send_trial, send_turn
from tests.e2e.daemon import Daemon
from tests.patience import wait_until


@pytest.fixture
def board(page: Page, demo: Daemon) -> Page:
    page.open(f"{demo.url}/")
    page.wait_text("#state", "ready")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(board: Page, demo: Daemon, scheme: str, width: int) -> None:
    """WCAG 2.2 A and AA: contrast, names, order, landmarks; while there is something to show."""
    board.prefer(scheme)
    board.resize(width, 900)
    send_turn(board)
    with load(demo):
        wait_until(lambda: "busy" in board.text("#models .stages"))
        assert violations(board) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_at_the_door(page: Page, guarded: Daemon, scheme: str) -> None:
    page.prefer(scheme)
    page.open(f"{guarded.url}/")
    page.wait_text("#key-form", "needs an API key")
    page.value("document.getElementById('key').value = 'wrong'")
    page.value("document.getElementById('key-form').requestSubmit()")
    page.wait_text("#key-error", "not accepted")
    assert violations(page) == []


def violations(page: Page) -> list[str]:
    page.value(f"{axe_source()}; 0")
    rules = '{runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}'
    found = page.value(f"axe.run(document, {rules}).then((result) => result.violations)")
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(board: Page, demo: Daemon, width: int) -> None:
    """Nor than what it is in: with an answer that is a table, and one that is refused."""
    httpx.post(f"{demo.url}/v1/chat/completions", json={})
    board.wait_text("#refusals", "invalid_request")
    board.resize(width, 900)
    for endpoint in ("/v1/embeddings", "/tokenize"):
        send_trial(board, "all-MiniLM-L6-v2", endpoint)
        assert board.value("document.documentElement.scrollWidth") <= width
        wide = board.value(
            "[...document.querySelectorAll('table, .row, #try-fields')].filter((one) => {"
            " const right = (which) => which.getBoundingClientRect().right;"
            " return right(one) > right(one.closest('.card')) }).length"
        )
        assert wide == 0


def test_the_box_to_try_endpoints_comes_first(board: Page) -> None:
    assert board.text("#board h2") == "Try it"
    assert board.value("document.getElementById('try-send').getBoundingClientRect().bottom") < 900


def test_the_keyboard_reaches_everything_in_order(board: Page) -> None:
    reached = []
    for _ in range(30):
        board.press("Tab")
        reached.append(board.value("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "BODY":
            break
        assert outline(board) >= 2, f"{reached[-1]} does not show that it has the focus"
    fields = [f"try-field-{name}" for name in ("system", "message", "tokens", "temperature")]
    expected = ["A", "try-model", "try-endpoint", *fields, "try-send", "SUMMARY"]
    assert reached[: len(expected)] == expected
    assert set(reached[len(expected) :]) <= {"A", "BODY"}


def outline(page: Page) -> float:
    style = "getComputedStyle(document.activeElement)"
    return page.value(f"{style}.outlineStyle === 'none' ? 0 : parseFloat({style}.outlineWidth)")


def test_an_endpoint_is_tried_by_keyboard_alone(board: Page) -> None:
    board.press("Tab")
    board.press("Enter")  # skip to the content
    assert board.value("document.activeElement.id") == "content"
    for _ in range(7):
        board.press("Tab")
    assert board.value("document.activeElement.id") == "try-send"
    board.press("Space")
    board.wait_text("#try-note", "First text after")
    board.press("Tab")
    assert board.value("document.activeElement.id") == "try-anew"
    board.press("Tab")
    assert board.value("document.activeElement.id") == "try-answer"
