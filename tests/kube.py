"""Calls of the tests to a Kubernetes API server: apply, read, wait, evict. Plain HTTP; no client library is needed."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

Object = dict[str, Any]

PLURAL = {"NetworkPolicy": "networkpolicies", "StorageClass": "storageclasses"}
CLUSTER_WIDE = {"Namespace", "Node", "PersistentVolume", "StorageClass"}


class RefusedError(Exception):
    """The API server's answer, if it is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Cluster:
    """The cluster that `kubernetes.sh with` started."""

    def __init__(self) -> None:
        self.address = os.environ["BOWSTRING_KUBERNETES"]
        self.token = os.environ["BOWSTRING_KUBERNETES_TOKEN"]
        self.context = ssl._create_unverified_context()  # noqa: S323

    def ask(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        request = urllib.request.Request(  # noqa: S310
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind},
        )
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:  # noqa: S310
                found: Object = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            message = json.loads(text).get("message", text) if text.startswith("{") else text
            raise RefusedError(error.code, message) from error

    @staticmethod
    def path(kind: str, version: str, namespace: str, name: str = "") -> str:
        root = "/api/v1" if version == "v1" else f"/apis/{version}"
        where = "" if kind in CLUSTER_WIDE else f"/namespaces/{namespace}"
        return f"{root}{where}/{PLURAL.get(kind, kind.lower() + 's')}{'/' + name if name else ''}"

    def apply(self, thing: Object, namespace: str, *, dry: bool = False) -> Object:
        """Apply on the server's side, as kubectl and Helm do."""
        path = self.path(thing["kind"], thing["apiVersion"], namespace, thing["metadata"]["name"])
        query = "?fieldManager=test&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        return self.ask("PATCH", path + query, thing, "application/apply-patch+yaml")

    def get(self, kind: str, version: str, namespace: str, name: str) -> Object:
        return self.ask("GET", self.path(kind, version, namespace, name))

    def pods(self, namespace: str, selector: str) -> list[Object]:
        found = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
        return list(found["items"])

    def evict(self, namespace: str, pod: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        self.ask("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)

    def cordon(self, node: str, *, on: bool) -> None:
        patch = {"spec": {"unschedulable": on}}
        self.ask("PATCH", f"/api/v1/nodes/{node}", patch, "application/merge-patch+json")


def until(what: str, found: Callable[[], Any], seconds: float = 300) -> Any:
    """Ask again and again until the answer is true, and return it."""
    end = time.monotonic() + seconds
    while True:
        last: Any = None
        try:
            if last := found():
                return last
        except RefusedError as error:
            last = error
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s; {last}")
        time.sleep(0.2)
