"""Start a Ray of the tests' own on this machine."""

from __future__ import annotations

import os
from typing import Any

import ray
from tenacity import RetryCallState, retry, stop_after_attempt

# Ray ends workers that take longer than a minute to start, and some of a machine whose memory is 95 % full, whoever
# has taken it.
PATIENT = {"RAY_worker_register_timeout_seconds": "600", "RAY_memory_monitor_refresh_ms": "0"}


def _clear(_: RetryCallState) -> None:
    ray.shutdown()


@retry(stop=stop_after_attempt(8), before_sleep=_clear, reraise=True)
def start(**options: Any) -> None:
    """Start it, again if its processes took longer than the 30 s that it gives them, or another has taken a port."""
    os.environ.update(PATIENT)
    options.setdefault("address", "local")  # not that of another test, which runs at the same time
    ray.init(include_dashboard=False, log_to_driver=False, **options)
