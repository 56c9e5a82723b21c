"""The cases, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from harness import Context, Result

from . import (
    cluster,
    collect,
    copy,
    doors,
    engine,
    fairness,
    first_batch,
    hostile,
    imports,
    latency,
    lock,
    loopback,
    manifest,
    memory,
    metadata,
    observe,
    plan,
    policy,
    python,
    python_malloc,
    replicas,
    sharing,
    simulate_store,
    spill,
    tail,
    tls,
    verify,
    wait,
)

CASES: dict[str, Callable[[Context], Result]] = {
    "plan": plan.run,
    "cluster": cluster.run,
    "simulate_store": simulate_store.run,
    "import": imports.run,
    "loopback": loopback.run,
    "tls": tls.run,
    "first_batch": first_batch.run,
    "metadata": metadata.run,
    "engine": engine.run,
    "latency": latency.run,
    "tail": tail.run,
    "replicas": replicas.run,
    "fairness": fairness.run,
    "lock": lock.run,
    "memory": memory.run,
    "manifest": manifest.run,
    "policy": policy.run,
    "spill": spill.run,
    "wait": wait.run,
    "sharing": sharing.run,
    "hostile": hostile.run,
    "observe": observe.run,
    "doors": doors.run,
    "verify": verify.run,
    "copy": copy.run,
    "collect": collect.run,
    "python": python.run,
    "python_malloc": python_malloc.run,
}
