"""Start a Ray of the tests' own on this machine."""

from __future__ import annotations

import os
import time
from typing import Any
from unittest import mock

import ray
from ray._private import services
from tenacity import RetryCallState, retry, stop_after_attempt
from wire import PATIENCE

# Ray ends workers that take longer than a minute to start, and some of a machine whose memory is 95 % full, whichever
# program has taken it.
PATIENT = {"RAY_worker_register_timeout_seconds": "600", "RAY_memory_monitor_refresh_ms": "0"}


def _clear(_: RetryCallState) -> None:
    ray.shutdown()


def _node(*args: Any) -> Any:
    """A node of Ray's, once it is known. Ray gives its process 30 s, which a busy machine exceeds."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _get_node(*args)  # type: ignore[no-untyped-call]
        except RuntimeError:  # noqa: PERF203 - a wait
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


_get_node = services.get_node


@retry(stop=stop_after_attempt(3), before_sleep=_clear, reraise=True)
def start(**options: Any) -> None:
    """Start it, again if another program has taken a port of it."""
    os.environ.update(PATIENT)
    options.setdefault("address", "local")  # not that of another test, which runs at the same time
    with mock.patch.object(services, "get_node", _node):
        ray.init(include_dashboard=False, log_to_driver=False, **options)
