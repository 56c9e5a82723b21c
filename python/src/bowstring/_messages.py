"""Names in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z0-9._@/-]{1,40}")


def shown(name: object) -> str:
    """A plain name unchanged, any other one quoted and escaped: names come from data and may contain anything."""
    text = str(name)
    return text if _PLAIN.fullmatch(text) else ascii(text)


def listed(names: Iterable[object]) -> str:
    """Names, separated by commas."""
    return ", ".join(map(shown, names))
