"""The Helm chart, as far as it can be tested without Helm. Tests with Helm are in deploy/helm and test_helm.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import ROOT

CHART = ROOT / "deploy" / "helm" / "bowstring"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(found)
    return found


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'\nversion = "{chart["appVersion"]}"\n' in (ROOT / "python" / "pyproject.toml").read_text()


def test_rules_and_dashboards_are_links() -> None:
    """A copy would grow old."""
    for path, target in (("bowstring.rules.yml", "prometheus"), ("dashboards", "grafana")):
        found = [CHART / "files" / path] if path.endswith("yml") else sorted((CHART / "files" / path).iterdir())
        kept = sorted(f for f in (ROOT / "deploy" / target).iterdir() if f.suffix in (".json", ".yml"))
        assert [f.resolve() for f in found] == [f for f in kept if f.name != "prometheus.yml"]
        assert all(f.is_symlink() for f in found)


@pytest.mark.parametrize("file", [CHART / "values.yaml", *sorted(CHART.glob("ci/*.yaml"))], ids=lambda file: file.stem)
def test_values(file: Path, schema: dict[str, Any]) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), schema)


def known(schema: dict[str, Any], values: Any, where: str = "") -> list[str]:
    """Names in the schema that values.yaml does not have, or the other way round."""
    if not isinstance(values, dict) or "properties" not in schema:
        return []
    wrong = [f"{where}.{name}" for name in set(values) ^ set(schema["properties"])]
    for name, value in values.items():
        wrong += known(schema["properties"].get(name, {}), value, f"{where}.{name}")
    return wrong


def test_every_value_is_documented(schema: dict[str, Any]) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    optional = {".global", ".resources.claims"}  # Helm's own; Kubernetes'
    settings = schema["properties"]["config"]["properties"]
    assert set(known(schema, values)) == optional | {f".config.{name}" for name in settings}
    assert "docs/cli.md" in next(line for line in (CHART / "values.yaml").open() if line.startswith("config:"))
    documented = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in settings if not re.search(rf"^\| `--{name}[ `]", documented, re.MULTILINE)] == []


@pytest.mark.parametrize(
    "wrong", ["replicsa: 3", "kind: Deployment", "drain: {seconds: 0}", "store: {address: 'cql://me:secret@db/photos'}"]
)
def test_wrong_values(wrong: str, schema: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(wrong), schema)
