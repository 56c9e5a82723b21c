"""A real Chromium for the tests: the one of the system, which is installed if it is absent and root may."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL = (
    "apt-get -qq update && "
    "apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install chromium fonts-dejavu-core"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Counts the lines of the list: the most at once, and how many were ever made.
LINES = """
window.lines = { most: 0, made: 0 };
new MutationObserver((changes) => {
  for (const c of changes) for (const n of c.addedNodes) {
    if (n.nodeType === 1) lines.made += n.matches(".rows .line") + n.querySelectorAll(".rows .line").length;
  }
  lines.most = Math.max(lines.most, document.querySelectorAll(".rows .line").length);
}).observe(document, { childList: true, subtree: true });
"""


def find() -> str | None:
    """Path of the browser, if there is one; CHROMIUM names another."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str:
    """Path of the browser; installs it from Debian's packages where that is allowed."""
    with (Path(tempfile.gettempdir()) / "bowstring-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of pytest start at once
        if found := find():
            return found
        if os.geteuid() == 0 and shutil.which("apt-get"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for _ in range(3):  # another installation may have the lists of packages for a while
                subprocess.run(["sh", "-c", INSTALL], check=False, env=environment, capture_output=True, timeout=600)  # noqa: S607
                if found := find():
                    return found
    raise RuntimeError(
        "Chromium is missing: install it (Debian, Ubuntu: apt install chromium), or name one by CHROMIUM"
    )
