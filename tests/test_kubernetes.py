"""The chart in a real control plane, its pods as containers: applied, upgraded and drained while a client reads."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import yaml
from conftest import PHOTOGRAPHS, ROOT, StartCassandra
from kube import Cluster, Object, RefusedError, until
from pki import Authority

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]

CHART = ROOT / "deploy" / "helm" / "bowstring"
RENDER = ROOT / "build" / "helm" / "render"
SPACE = "training"
CUSTOM = {"Certificate", "PrometheusRule", "ScaledObject", "ServiceMonitor"}  # of operators that are not there
SERVERS = "app.kubernetes.io/name=bowstring"


def render(values: Path) -> list[Object]:
    command: list[str | Path] = [
        RENDER,
        "--name",
        "feed",
        "--namespace",
        SPACE,
        "--kube",
        "1.36",
        "--values",
        values,
        CHART,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    found = Cluster()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}}, "")
    until("two nodes", lambda: len(found.ask("GET", "/api/v1/nodes")["items"]) == 2)
    until("an account", lambda: found.get("ServiceAccount", "v1", SPACE, "default"))
    return found


@pytest.mark.parametrize("values", sorted(CHART.glob("ci/*.yaml")), ids=lambda path: path.stem)
def test_variants(cluster: Cluster, values: Path) -> None:
    """The API server takes every object; and every pod under `restricted`, except one with a folder of its node."""
    things = render(values)
    for thing in things:
        if thing["kind"] in CUSTOM:
            continue
        cluster.apply(thing, SPACE, dry=True)
        template = thing["spec"].get("template") if "spec" in thing else None
        if template is None:
            continue
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "a-pod"}}
        pod["spec"] |= {"serviceAccountName": "default", "restartPolicy": "Always"}
        pod["spec"].pop("priorityClassName", None)
        known = {volume["name"] for volume in pod["spec"].get("volumes") or []}
        for claim in thing["spec"].get("volumeClaimTemplates", []):
            if claim["metadata"]["name"] not in known:
                pod["spec"]["volumes"].append({"name": claim["metadata"]["name"], "emptyDir": {}})
        if "hostPath" in values.read_text():
            with pytest.raises(RefusedError, match=r"violates PodSecurity.*hostPath"):
                cluster.ask("POST", f"/api/v1/namespaces/{SPACE}/pods?dryRun=All", pod)
        else:
            cluster.ask("POST", f"/api/v1/namespaces/{SPACE}/pods?dryRun=All", pod)


class Reader(threading.Thread):
    """Reads epoch after epoch; where a stream or a connection breaks, it goes on from the last ticket."""

    def __init__(self, connect: Callable[[], fl.FlightClient], options: fl.FlightCallOptions, pause: float = 0) -> None:
        super().__init__()
        self.connect, self.options = connect, options
        self.pause = pause  # between batches, as a job that computes makes
        self.stopping = threading.Event()
        self.rows = self.epochs = self.breaks = 0
        self.failed: list[str] = []

    def run(self) -> None:
        epoch = 0
        while not self.stopping.is_set():
            try:
                seen = self.epoch(epoch)
            except Exception as error:  # noqa: BLE001
                self.failed.append(f"epoch {epoch}: {error}")
            else:
                if len(seen) != PHOTOGRAPHS or set(seen.values()) != {1}:
                    self.failed.append(f"epoch {epoch}: {len(seen)} samples, up to {max(seen.values())} times")
                self.epochs += 1
            epoch += 1

    def epoch(self, number: int) -> Counter[bytes]:
        request = {"dataset": "photos", "shuffle": {"seed": 7, "epoch": number}, "batch": 16}
        seen: Counter[bytes] = Counter()
        resume: dict[str, Any] | None = None
        end = time.monotonic() + 180
        while True:
            more = self.go_on(request, resume, seen)
            if more is None:
                return seen
            resume = more
            self.breaks += 1
            if time.monotonic() > end:
                message = f"{len(seen)} samples within three minutes"
                raise TimeoutError(message)
            time.sleep(0.1)

    def go_on(self, request: Object, resume: Object | None, seen: Counter[bytes]) -> Object | None:
        """Read on until the epoch's end, and return nothing; or until something breaks, and return where it was."""
        try:
            with self.connect() as client:
                if not resume:
                    descriptor = fl.FlightDescriptor.for_command(json.dumps(request))
                    ticket = client.get_flight_info(descriptor, self.options).endpoints[0].ticket
                    resume = json.loads(ticket.ticket)
                for chunk in client.do_get(fl.Ticket(json.dumps(resume).encode()), self.options):
                    seen.update(chunk.data["id"].to_pylist())
                    self.rows += chunk.data.num_rows
                    time.sleep(self.pause)
                    resume = json.loads(chunk.app_metadata.to_pybytes()).get("resume")
                    if resume is None:
                        return None
        except (fl.FlightUnavailableError, fl.FlightTimedOutError, pa.ArrowInvalid, OSError):
            return resume or {}
        return None

    def rate(self, seconds: float) -> float:
        """Samples a second for that long."""
        begun, rows = time.monotonic(), self.rows
        time.sleep(seconds)
        return (self.rows - rows) / (time.monotonic() - begun)


@pytest.fixture(scope="module")
def database(start_cassandra: StartCassandra) -> str:
    return start_cassandra(IP="10.213.0.1").address.replace("127.0.0.1", "10.213.0.1")


def secret(name: str, **files: bytes) -> Object:
    data = {key.replace("__", "."): base64.b64encode(value).decode() for key, value in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def volumes(folder: Path) -> Iterator[Object]:
    """Local disks of the nodes, two of each."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    for node in ("node-0", "node-1"):
        for disk in range(2):
            path = folder / f"{node}-{disk}"
            path.mkdir(parents=True)
            term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
            yield {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": path.name},
                "spec": {
                    "capacity": {"storage": "100Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "local",
                    "local": {"path": str(path)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
                },
            }


def install(cluster: Cluster, things: list[Object]) -> None:
    """Do what Helm does: what is to be before, to its end; then all else."""
    for thing in things:
        hook = thing["metadata"].get("annotations", {}).get("helm.sh/hook", "")
        if hook.startswith("pre-"):
            finish(cluster, thing)
        elif not hook:
            cluster.apply(thing, SPACE)


def finish(cluster: Cluster, job: Object) -> None:
    """Run a job to its end, instead of the one of its name from before."""
    path = cluster.path("Job", "batch/v1", SPACE, job["metadata"]["name"])
    if not gone(cluster, path):
        cluster.ask("DELETE", path + "?propagationPolicy=Foreground")
        until("the old job gone", lambda: gone(cluster, path))
    cluster.apply(job, SPACE)
    until("the job's end", lambda: cluster.ask("GET", path).get("status", {}).get("succeeded"))


def gone(cluster: Cluster, path: str) -> bool:
    try:
        cluster.ask("GET", path)
    except RefusedError as error:
        return error.code == 404
    return False


def rolled_out(cluster: Cluster) -> bool:
    found = cluster.get("StatefulSet", "apps/v1", SPACE, "feed-bowstring")
    status, want = found.get("status", {}), found["spec"]["replicas"]
    done: bool = (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == want
        and status.get("availableReplicas", 0) == want
        and status.get("currentRevision") == status.get("updateRevision")
    )
    return done


def test_upgrade_and_drain(
    cluster: Cluster,
    database: str,
    folder: Path,
    bowstring: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    record_property: Callable[[str, Any], None],
) -> None:
    authority = Authority(tmp_path / "pki")
    host = f"feed-bowstring.{SPACE}.svc"
    cert, key = authority.sign("server", f"DNS:{host}", "serverAuth")
    tokens = tmp_path / "tokens.json"
    token = bowstring("token", "create", "--tokens", tokens, "--principal", "trainer").stdout.strip()
    for thing in (
        secret("feed-tls", tls__crt=cert.read_bytes(), tls__key=key.read_bytes(), ca__crt=authority.root),
        secret("feed-tokens", tokens__json=tokens.read_bytes()),
        secret("feed-admin", token=b"0123456789abcdef0123"),
        secret("a-client", token=token.encode()),
        *volumes(Path(os.environ["BOWSTRING_KUBERNETES_DIR"]) / "disks"),
    ):
        cluster.apply(thing, SPACE)
    values = {
        "store": {"address": f"cql://{database}/kubernetes", "init": {"enabled": True, "replication": "1"}},
        "tls": {"secret": "feed-tls"},
        "auth": {"tokens": {"secret": "feed-tokens"}},
        "admin": {"tokenSecret": "feed-admin"},
        "spill": {"storageClass": "local", "share": "2GB"},
        "drain": {"seconds": 3, "settleSeconds": 2},  # less than an epoch of the slow reader takes
        "tests": {"tokenSecret": "a-client"},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    things = render(file)
    install(cluster, things)
    until("two servers", lambda: rolled_out(cluster))
    bowstring("import", folder, "photos", "--store", f"cql://{database}/kubernetes")

    # `helm test`
    (test,) = [t for t in things if t["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    cluster.apply(test, SPACE)
    name = test["metadata"]["name"]
    phase = until("the test's end", lambda: ended(cluster, name))
    assert phase == "Succeeded", logs()

    address = cluster.get("Service", "v1", SPACE, "feed-bowstring")["spec"]["clusterIP"]
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())], timeout=120)

    def connect() -> fl.FlightClient:
        return fl.connect(f"grpc+tls://{address}:8815", tls_root_certs=authority.root, override_hostname=host)

    reader, slow = Reader(connect, options), [Reader(connect, options, pause=1.0) for _ in range(4)]
    for each in (reader, *slow):
        each.start()
    try:
        until("some epochs", lambda: reader.epochs >= 3)
        before = reader.rate(10)

        # An upgrade: other settings, so other pods, one by one.
        old = {pod["metadata"]["uid"] for pod in cluster.pods(SPACE, SERVERS)}
        file.write_text(yaml.safe_dump(values | {"config": {"max-streams": 100}}))
        begun, rows = time.monotonic(), reader.rows
        install(cluster, render(file))
        until("the upgrade's end", lambda: rolled_out(cluster))
        upgrade = (reader.rows - rows) / (time.monotonic() - begun)
        assert not old & {pod["metadata"]["uid"] for pod in cluster.pods(SPACE, SERVERS)}

        # A drain of a node: its pods are evicted, and come back when it does.
        (victim, *_) = [pod for pod in cluster.pods(SPACE, SERVERS) if pod["spec"]["nodeName"] == "node-0"]
        begun, rows = time.monotonic(), reader.rows
        cluster.cordon("node-0", on=True)
        until("the eviction", lambda: evicted(cluster, victim["metadata"]["name"]))
        uid = victim["metadata"]["uid"]
        until("its end", lambda: uid not in {pod["metadata"]["uid"] for pod in cluster.pods(SPACE, SERVERS)})
        cluster.cordon("node-0", on=False)
        until("both servers again", lambda: rolled_out(cluster))
        drain = (reader.rows - rows) / (time.monotonic() - begun)
    finally:
        for each in (reader, *slow):
            each.stopping.set()
        for each in (reader, *slow):
            each.join(200)
        shutil.copytree(os.environ["BOWSTRING_KUBERNETES_DIR"], ROOT / "build" / "kubernetes-logs", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("etcd", "disks", "bundles", "certs", "volumes"))  # fmt: skip
    failed = [epoch for each in (reader, *slow) for epoch in each.failed]
    figures = {
        "failed_epochs": len(failed),
        "epochs": sum(each.epochs for each in (reader, *slow)),
        "breaks": sum(each.breaks for each in (reader, *slow)),
        "share_upgrade": round(upgrade / before, 3),
        "share_drain": round(drain / before, 3),
        "samples_per_s": round(before, 1),
    }
    print(json.dumps({"case": "kubernetes", **figures}))
    for figure, value in figures.items():
        record_property(figure, value)
    assert failed == []
    assert all(each.epochs > 0 for each in (reader, *slow))
    assert figures["breaks"] > 0, "no stream was cut, so nothing was shown"


def ended(cluster: Cluster, pod: str) -> str | None:
    phase: str = cluster.get("Pod", "v1", SPACE, pod).get("status", {}).get("phase", "")
    return phase if phase in ("Succeeded", "Failed") else None


def evicted(cluster: Cluster, pod: str) -> bool:
    try:
        cluster.evict(SPACE, pod)
    except RefusedError as error:
        if error.code == 429:  # the budget: another one is not ready
            return False
        raise
    return True


def logs() -> str:
    found = (Path(os.environ["BOWSTRING_KUBERNETES_DIR"]) / "kubelet" / "logs").glob("*.log")
    return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in found)
