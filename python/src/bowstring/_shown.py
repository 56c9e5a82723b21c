"""Names as messages have them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z0-9._@/-]{1,40}")


def shown(name: object) -> str:
    """A plain name as it is, any other one in quotes with escapes: names come from data, and may say anything."""
    text = str(name)
    return text if _PLAIN.fullmatch(text) else ascii(text)


def listed(names: Iterable[object]) -> str:
    """Names with commas between."""
    return ", ".join(map(shown, names))
