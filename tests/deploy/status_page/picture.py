"""Takes the picture in docs/api.md: `python -m tests.deploy.status_page.picture`."""

import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.deploy.status_page.chromium import Chromium
from tests.deploy.status_page.test_board import load, send_turn
from tests.e2e.daemon import running

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "status-page.png"
_WIDTH, _HEIGHT = 1100, 1200
_COLOURS = 64
_SECONDS = 40  # of load, so that there are lines to see


def main() -> None:
    """The demo models under load, with a chat, as far down as the models' cards."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running("--threads", "1") as daemon,
        Chromium(Path(folder)) as chromium,
        load(daemon),
    ):
        page = chromium.page()
        page.resize(_WIDTH, _HEIGHT)
        page.prefer("light")
        page.open(f"{daemon.url}/")
        time.sleep(_SECONDS)
        send_turn(page)
        page.screenshot(PICTURE)
    Image.open(PICTURE).convert("RGB").quantize(_COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
