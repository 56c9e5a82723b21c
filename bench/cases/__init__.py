"""The cases, by name, in the order in which they run, each with its module.

A module is imported when its case is asked for: some import libraries that take seconds and hundreds of megabytes.
"""

from __future__ import annotations

import importlib

from harness import Run

CASES: dict[str, str] = {
    "plan": "plan",
    "mixture": "mixture",
    "cluster": "cluster",
    "real_cluster": "real_cluster",
    "chunk_price": "chunk_price",
    "attach_objects": "attach_objects",
    "churn": "churn",
    "real_cluster_bucket": "real_cluster_bucket",
    "real_cluster_settings": "real_cluster_settings",
    "locality": "locality",
    "simulate": "simulate",
    "simulate_real": "simulate_real",
    "simulate_store": "simulate_store",
    "explain": "explain",
    "explain_fresh": "explain_fresh",
    "import": "imports",
    "loopback": "loopback",
    "tls": "tls",
    "first_batch": "first_batch",
    "first_hour": "first_hour",
    "metadata": "metadata",
    "engine": "engine",
    "latency": "latency",
    "tail": "tail",
    "replicas": "replicas",
    "fairness": "fairness",
    "tenants": "tenants",
    "lock": "lock",
    "memory": "memory",
    "manifest": "manifest",
    "policy": "policy",
    "spill": "spill",
    "sql": "sql",
    "wait": "wait",
    "objects": "objects",
    "objects_cost": "objects_cost",
    "wait_objects": "wait_objects",
    "shm": "shm",
    "shm_faults": "shm_faults",
    "sampling": "sampling",
    "sharing": "sharing",
    "groups": "groups",
    "mixture_cost": "mixture_cost",
    "hostile": "hostile",
    "silent_store": "silent_store",
    "observe": "observe",
    "own_data": "own_data",
    "packing": "packing",
    "audio_ops": "audio_ops",
    "audio_same": "audio_same",
    "auth_cost": "auth_cost",
    "auto_server": "auto_server",
    "broken_off": "broken_off",
    "console": "console",
    "access": "access",
    "verify": "verify",
    "copy": "copy",
    "cql_cpu": "cql_cpu",
    "collect": "collect",
    "image_ops": "image_ops",
    "image_same": "image_same",
    "imagenet_like": "imagenet_like",
    "librispeech_like": "librispeech_like",
    "placement": "placement",
    "dlcache": "dlcache",
    "dlio": "dlio",
    "prefix_cache": "prefix_cache",
    "faults": "faults",
    "install": "install",
    "kubernetes": "kubernetes",
    "python": "python",
    "frameworks": "frameworks",
}


def load(case: str) -> Run:
    """The function that runs a case."""
    run: Run = importlib.import_module(f"cases.{CASES[case]}").run
    return run
