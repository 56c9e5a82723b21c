"""Streams that a proxy ends in the middle go on where they stood: each sample comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import bowstring
import pyarrow.flight as fl
import pytest
from bowstring.errors import translated
from cutter import Cut, Cutter, end_of_data, goes_away, nothing, reset
from local_photos import digests, photos
from node import Node

# HTTP/2's reasons: NO_ERROR, INTERNAL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, REFUSED_STREAM, CANCEL, CONNECT_ERROR
RESETS = {f"reset for reason {reason}": reset(reason) for reason in (0, 2, 4, 5, 7, 8, 10)}
ENDINGS: dict[str, Callable[[int], bytes]] = {
    **RESETS,
    "an end without a status": end_of_data,
    "GOAWAY": goes_away,
    "a close": nothing,
    "GOAWAY and a close": goes_away,
}


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stream_that_is_cut_off_goes_on(node: Node, ending: str) -> None:
    cut = Cut(2 << 20, 3, ENDINGS[ending], closes="close" in ending)
    seen: Counter[int] = Counter()
    bytes_of: dict[int, str] = {}
    with Cutter(node.port, cut) as proxy, photos(bowstring.connect(proxy.url, retries=3)).batches(16) as batches:
        for batch in batches:
            found = digests(batch)
            seen.update(found.keys())
            bytes_of |= found
    assert cut.made == 3
    assert set(seen.values()) == {1}
    assert len(seen) == 300
    assert bytes_of == {
        p: d for batch in photos(bowstring.connect(node.url)).batches(64) for p, d in digests(batch).items()
    }


def test_a_stream_that_is_always_cut_off_fails_in_the_end(node: Node) -> None:
    cut = Cut(100 << 10, 1 << 30, reset(2))  # bytes: what a stream alone has
    with Cutter(node.port, cut) as proxy:
        dataset = photos(bowstring.connect(proxy.url, retries=1))
        with pytest.raises(bowstring.Unavailable, match=r"reset|RST_STREAM"):
            next(dataset.batches(64))
    assert cut.made >= 2


def test_a_take_that_is_cut_off_is_repeated(node: Node) -> None:
    rows = list(range(0, 300, 2))
    wanted = photos(bowstring.connect(node.url)).take(rows)
    cut = Cut(1 << 20, 2, reset(0))
    with Cutter(node.port, cut) as proxy:
        assert photos(bowstring.connect(proxy.url)).take(rows).equals(wanted)
    assert cut.made == 2


def test_what_the_server_itself_says_is_no_reset() -> None:
    error = fl.FlightInternalError(
        "Flight returned internal error, with message: the column Received RST_STREAM with error code 2 is damaged"
    )
    assert isinstance(translated(error), bowstring.ServerError)
