"""A headless Chromium that is told what to do through a pipe (DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
SECONDS = 120  # until a browser that does not answer is given up


class Browser:
    """One page of a browser; to be used in a ``with`` block."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._out = os.pipe()
        self._in, answers = os.pipe()
        options = (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
            *("--disable-background-networking", "--disable-extensions"),
            *("--allow-file-access-from-files", "--remote-debugging-pipe"),
            f"--user-data-dir={self._folder.name}",
        )
        command = f'exec "$0" "$@" 3<&{theirs} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, *options, "about:blank"],
            pass_fds=(theirs, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self._number, self._rest = 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            os.close(self._in)
            os.close(self._out)
            self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: str, scheme: str = "light") -> None:
        """Load a page, and wait until it has loaded."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=page)
        self.wait_for(
            f"location.href == {json.dumps(page)} && document.readyState == 'complete'"
        )

    def wait_for(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        code = f"""new Promise((done, fail) => {{
            const end = Date.now() + {SECONDS * 1000};
            const look = () => {{
                if ({condition}) done(true);
                else if (Date.now() > end) fail(new Error("timeout"));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        for _ in range(100):  # a navigation ends the script
            try:
                found = self.evaluate(code)
            except AssertionError:
                continue
            assert found is True
            return
        raise TimeoutError(condition)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write what is to be seen to a PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        """Return the next message of the browser."""
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
