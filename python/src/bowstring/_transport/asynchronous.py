"""Calls that are awaited: another thread makes them, and ends when their task is cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from bowstring._cancellation import Cancellation, current
from bowstring._transport.background import in_future

P = ParamSpec("P")
T = TypeVar("T")


class Asynchronous:
    """The methods and properties of an object, each to be awaited. [asynchronous][bowstring.asynchronous] makes it."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __repr__(self) -> str:
        return f"<bowstring.Asynchronous {self._of!r}>"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._of) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as what copy and pickle look for
            raise AttributeError(f"{type(self).__name__} has no {name}")
        if isinstance(getattr(type(self._of), name, None), property):
            return asynchronous(getattr)(self._of, name)
        found = getattr(self._of, name)
        return asynchronous(found) if callable(found) else found


@overload
def asynchronous(of: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...  # type: ignore[overload-overlap]
@overload
def asynchronous(of: object, /) -> Asynchronous: ...
def asynchronous(of: Any, /) -> Any:
    """The same call for asyncio, to be awaited; or all calls of an object.

    ```python
    take = bowstring.asynchronous(photos.take)
    table = await take([9, 3])
    photos = await bowstring.asynchronous(bowstring.open)("photos/")
    rows = await bowstring.asynchronous(photos).num_rows
    ```

    Another thread makes the call, and other tasks run meanwhile. If the task is cancelled, the call is cancelled at the
    server, and the thread has ended before the task does. An upload ends before its next batch and stores nothing,
    unless all rows were sent already. `async for` reads [Batches][bowstring.Batches] without this.

    Args:
        of: A function, such as a method of [Client][bowstring.Client] or [Dataset][bowstring.Dataset], whose types stay
            known; or an object, whose methods and properties are awaited then.
    """
    if not callable(of):
        return Asynchronous(of)

    @functools.wraps(of)
    async def call(*args: Any, **kwargs: Any) -> Any:
        cancellation = Cancellation()
        token = current.set(cancellation)
        try:
            made = asyncio.wrap_future(in_future(functools.partial(of, *args, **kwargs)))
        finally:
            current.reset(token)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            # Otherwise asyncio logs that it was never looked at. A second cancel ends the wait for the thread.
            made.add_done_callback(lambda done: done.cancelled() or done.exception())
            cancellation.cancel()
            await asyncio.wait([made])
            raise

    return call
