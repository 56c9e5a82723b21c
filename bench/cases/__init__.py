"""The cases, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from harness import Context, Result

from . import first_batch, imports, loopback, metadata, plan

CASES: dict[str, Callable[[Context], Result]] = {
    "plan": plan.run,
    "import": imports.run,
    "loopback": loopback.run,
    "first_batch": first_batch.run,
    "metadata": metadata.run,
}
