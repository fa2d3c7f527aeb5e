"""A headless Chromium, driven by the DevTools protocol over a pipe.

https://chromedevtools.github.io/devtools-protocol/: JSON, each message ended by a NUL, commands to
the browser's descriptor 3, answers and events from its descriptor 4.
"""

import base64
import itertools
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.patience import wait_until

JSON = dict[str, Any]

_OPTIONS = (
    "--headless=new --remote-debugging-pipe --no-first-run --no-default-browser-check "
    "--disable-background-networking --disable-component-update --disable-sync --disable-gpu "
    # The container has no user namespaces for the sandbox, and little in /dev/shm.
    "--no-sandbox --disable-dev-shm-usage --hide-scrollbars about:blank"
).split()
_SECONDS = 20.0


class Chromium:
    """`with` runs the browser, with a profile of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids = itertools.count(1)
        self._events: list[JSON] = []
        self._unread = b""

    def __enter__(self) -> "Chromium":
        to_browser, self._commands = os.pipe()
        self._messages, from_browser = os.pipe()
        # The browser wants descriptors 3 and 4, which a shell gives it from whatever ours are.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        profile = f"--user-data-dir={self._folder}"
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", "chromium", profile, *_OPTIONS],
            pass_fds=[to_browser, from_browser],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(self._folder)},
        )
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_SECONDS)
        os.close(self._commands)
        os.close(self._messages)

    def page(self) -> "Page":
        """A new page, in a session of its own: it shares no storage with others."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return Page(self, attached["sessionId"])

    def send(self, method: str, session: str | None = None, **params: Any) -> JSON:
        """Send a command and wait for its result. Raises RuntimeError if the browser refuses it."""
        number = next(self._ids)
        message: JSON = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._receive(deadline - time.monotonic())
            if answer.get("id") != number:
                self._events.append(answer)
            elif "error" in answer:
                said = answer["error"]["message"]
                kind = PageLeftError if "navigated" in said else RuntimeError
                raise kind(f"{method}: {said}")
            else:
                return answer["result"]

    def events(self, session: str) -> list[JSON]:
        """What has happened in a session so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _receive(self, seconds: float) -> JSON:
        while b"\0" not in self._unread:
            if not select.select([self._messages], [], [], max(seconds, 0))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._messages, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


class PageLeftError(RuntimeError):
    """The page was left for another, or loaded again, while a command ran in it."""


class Page:
    """One page. `do` and `value` run JavaScript in it."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")
        self.resize(1280, 900)

    def send(self, method: str, **params: Any) -> JSON:
        """A command to this page."""
        return self._browser.send(method, self._session, **params)

    def open(self, url: str) -> None:
        """Go to `url`, and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        wait_until(lambda: self.value("document.readyState") == "complete")

    def value(self, expression: str) -> Any:
        """The JSON value of an expression, awaited. Raises AssertionError if it throws."""
        result = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of an element that can be seen; "" if there is none, or the page is left."""
        try:
            return self.value(
                f"[document.querySelector({json.dumps(selector)})]"
                ".map((found) => found?.checkVisibility() ? found.innerText : '')[0]"
            )
        except PageLeftError:
            return ""

    def wait_text(self, selector: str, part: str) -> None:
        """Wait until an element's visible text contains `part`."""
        wait_until(lambda: part in self.text(selector))

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Tab, Enter, Space or an arrow."""
        code = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowDown": 40, "ArrowUp": 38}[key]
        named = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        shifted = 8 if shift else 0
        down = {"type": "keyDown" if text else "rawKeyDown", "text": text, "modifiers": shifted}
        self.send("Input.dispatchKeyEvent", **named, **down)
        self.send("Input.dispatchKeyEvent", **named, type="keyUp", modifiers=shifted)

    def resize(self, width: int, height: int) -> None:
        """The window, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[preference])

    def screenshot(self, file: Path) -> None:
        """What the window shows, as PNG."""
        shot = self.send("Page.captureScreenshot")
        file.write_bytes(base64.b64decode(shot["data"]))

    def requests(self) -> list[str]:
        """Every URL that was asked for."""
        return [
            event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")
        ]

    def posted(self) -> list[JSON]:
        """The body of every POST of JSON, in order."""
        sent = [event["params"]["request"] for event in self._events("Network.requestWillBeSent")]
        return [json.loads(request["postData"]) for request in sent if "postData" in request]

    def complaints(self) -> list[str]:
        """What the console shows of errors and warnings: of scripts, the network, the policy."""
        entries = [event["params"]["entry"] for event in self._events("Log.entryAdded")]
        calls = [event["params"] for event in self._events("Runtime.consoleAPICalled")]
        thrown = [event["params"] for event in self._events("Runtime.exceptionThrown")]
        return [
            *(entry["text"] for entry in entries if entry["level"] in ("error", "warning")),
            *(str(call["args"]) for call in calls if call["type"] in ("error", "warning")),
            *(one["exceptionDetails"]["text"] for one in thrown),
        ]

    def _events(self, method: str) -> list[JSON]:
        self.value("0")  # whatever came before this answer has been read
        return [event for event in self._browser.events(self._session) if event["method"] == method]
