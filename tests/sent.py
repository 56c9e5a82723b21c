"""The rows and bytes that a server has sent, counted when no stream is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import bowstring
from wire import until


class Sent(NamedTuple):
    """Rows and bytes that a server sent."""

    rows: int
    bytes: int


def sent_since(client: bowstring.Connection) -> Callable[[], Sent]:
    """The rows and bytes that a server has sent since the last call; at first, since this one."""

    def now() -> Sent:
        stats: dict[str, Any] = {}

        def quiet() -> bool:
            nonlocal stats
            stats = client.stats()
            return not stats["streams"]

        until(quiet, "the end of all streams")  # one that was closed early is counted when the server has noticed
        return Sent(stats["server"]["rows"], stats["server"]["bytes"])

    before = now()

    def since() -> Sent:
        nonlocal before
        after = now()
        difference = Sent(after.rows - before.rows, after.bytes - before.bytes)
        before = after
        return difference

    return since
