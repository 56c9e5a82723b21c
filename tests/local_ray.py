"""Start a Ray of the tests' own on this machine."""

from __future__ import annotations

from typing import Any

import ray
from tenacity import RetryCallState, retry, retry_if_exception_message, stop_after_attempt


def _clear(_: RetryCallState) -> None:
    ray.shutdown()


@retry(
    retry=retry_if_exception_message(match="(?s).*timed out during startup"),
    stop=stop_after_attempt(3),
    before_sleep=_clear,
    reraise=True,
)
def start(**options: Any) -> None:
    """Start it, again where its processes took longer than the 30 s that it gives them: other tests run beside."""
    ray.init(include_dashboard=False, log_to_driver=False, **options)
