"""Messages of a server besides rows: objects in JSON, and text."""

from __future__ import annotations

import json
from typing import Any

from bowstring.errors import ServerError


def decoded(message: bytes) -> dict[str, Any]:
    """The JSON object in a server's message."""
    found = json.loads(message)
    if not isinstance(found, dict):
        raise ServerError(f"the server sent {found!r} where an object belongs")
    return found


def text(given: str | bytes) -> str:
    """Text that pyarrow returns as bytes or text."""
    return given.decode() if isinstance(given, bytes) else given
