"""The objects that the chart renders to, by Helm's own library, against Kubernetes' schemas and their reader."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

pytestmark = pytest.mark.helm

CHART = ROOT / "deploy" / "helm" / "bowstring"
VERSIONS = ["1.30", "1.32", "1.34", "1.36"]
VARIANTS = sorted(CHART.glob("ci/*-values.yaml"))
CUSTOM = {"Certificate", "PrometheusRule", "ScaledObject", "ServiceMonitor"}  # of operators, with schemas of their own


def render(values: Path, version: str) -> list[dict[str, Any]]:
    command: list[str | Path] = [ROOT / "build" / "helm" / "render", "--kube", version, "--values", values, CHART]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem.removesuffix("-values"))
def test_schemas(values: Path, version: str) -> None:
    import kubernetes_validate

    things = render(values, version)
    assert len(things) >= 4
    for thing in things:
        if thing["kind"] not in CUSTOM:
            kubernetes_validate.validate(thing, version, strict=True)


def test_a_wrong_object_is_found() -> None:
    import kubernetes_validate

    (workload,) = [t for t in render(VARIANTS[0], "1.36") if t["kind"] in ("StatefulSet", "DaemonSet")]
    workload["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["second"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, "1.36", strict=True)


@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem.removesuffix("-values"))
def test_the_program_knows_the_settings(values: Path, binary: Path, tmp_path: Path) -> None:
    maps = [t for t in render(values, "1.36") if t["kind"] == "ConfigMap" and "bowstring.yaml" in t["data"]]
    file = tmp_path / "bowstring.yaml"
    file.write_text(maps[0]["data"]["bowstring.yaml"])
    done = subprocess.run([binary, "config", "print", "--config", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "listen: :8815" in done.stdout


@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem.removesuffix("-values"))
def test_the_program_knows_the_rules(values: Path, binary: Path, tmp_path: Path) -> None:
    for thing in render(values, "1.36"):
        if thing["kind"] == "ConfigMap" and "rules.yaml" in thing["data"]:
            file = tmp_path / "rules.yaml"
            file.write_text(thing["data"]["rules.yaml"])
            subprocess.run([binary, "auth", "lint", "--rules", file], check=True, capture_output=True)
