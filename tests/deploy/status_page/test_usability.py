"""Keyboard, contrast, narrow windows."""

import pytest

from tests.deploy.status_page.chromium import Page
from tests.deploy.status_page.conftest import axe_source
from tests.deploy.status_page.test_board import load
from tests.e2e.daemon import Daemon
from tests.patience import wait_until


@pytest.fixture
def board(page: Page, demo: Daemon) -> Page:
    page.open(f"{demo.url}/")
    page.wait_text("#state", "ready")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_nothing(board: Page, demo: Daemon, scheme: str, width: int) -> None:
    """WCAG 2.2 A and AA: contrast, names, order, landmarks; while there is something to show."""
    board.prefer(scheme)
    board.resize(width, 900)
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


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_nothing_is_wider_than_the_window(board: Page, width: int) -> None:
    board.resize(width, 900)
    assert board.value("document.documentElement.scrollWidth") <= width


def test_the_keyboard_reaches_everything_in_order(board: Page) -> None:
    reached = []
    for _ in range(30):
        board.press("Tab")
        reached.append(board.value("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "BODY":
            break
        assert outline(board) >= 2, f"{reached[-1]} does not show that it has the focus"
    expected = (
        "A try-model try-endpoint try-field-message try-field-tokens try-send SUMMARY".split()
    )
    assert reached[:7] == expected
    assert set(reached[7:]) <= {"A", "BODY"}


def outline(page: Page) -> float:
    style = "getComputedStyle(document.activeElement)"
    return page.value(f"{style}.outlineStyle === 'none' ? 0 : parseFloat({style}.outlineWidth)")


def test_an_endpoint_is_tried_by_keyboard_alone(board: Page) -> None:
    board.press("Tab")
    board.press("Enter")  # skip to the content
    assert board.value("document.activeElement.id") == "content"
    for _ in range(5):
        board.press("Tab")
    assert board.value("document.activeElement.id") == "try-send"
    board.press("Space")
    board.wait_text("#try-note", "First text after")
    board.press("Tab")
    assert board.value("document.activeElement.id") == "try-answer"
