"""The import rule of the architecture holds: a forbidden import makes the linter fail, and says why."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINTER = ROOT / "build" / "tools" / "golangci-lint"

FORBIDDEN = [
    ("schema", "bowstring/spill", "schema says what everything is called"),
    ("fetch/plan", "bowstring/spill", "fetch/plan is pure"),
    ("fetch/layout", "bowstring/fetch/plan", "fetch/layout says who owns what"),
    ("fetch/predict", "bowstring/fetch/resolve", "fetch/predict is a model in closed form"),
    ("fetch/calibrate", "bowstring/fetch/store", "fetch/calibrate is told how blobs are read"),
    ("fetch/members", "bowstring/fetch/store", "fetch/members says which nodes there are"),
    ("flight/shm", "bowstring/flight/policy", "flight/shm shares memory"),
    ("flight/wire", "bowstring/fetch", "flight/wire brings batches"),
    ("fetch/where", "bowstring/fetch", "fetch/where turns an expression"),
    ("spill/segment", "bowstring/fetch", "spill keeps bytes"),
    ("fetch", "bowstring/flight", "fetch plans, reads and assembles"),
    ("fetch/store/local", "bowstring/cmd/tool", "fetch plans, reads and assembles"),
    ("fetch/store/local", "bowstring/fetch/prefetch", "a store keeps blobs"),
    ("fetch/store/maintenance", "bowstring/fetch/store/local", "looks after any store"),
    ("internal/faults", "bowstring/fetch/store/protocol", "judges the store by what was asked and told"),
    ("fetch/admission", "bowstring/fetch/store", "fetch/admission shares out turns"),
    ("fetch/operators/audio", "bowstring/fetch/admission", "makes bytes of bytes"),
    ("fetch/operators/audio/vorbis", "bowstring/fetch/operators/audio/codec", "decodes one format"),
    ("fetch/operators", "bowstring/fetch/prefetch", "fetch/operators makes something of cells"),
    ("fetch/manifest", "bowstring/fetch/store", "fetch/manifest gives rows"),
    ("fetch/operators/images", "bowstring/fetch/prefetch", "fetch/operators/images makes pixels"),
    ("fetch/operators/images/jpeg", "bowstring/schema", "fetch/operators/images makes pixels"),
    ("fetch/read", "bowstring/fetch/prefetch", "fetch/read reads blobs"),
    ("fetch/read", "bowstring/fetch/operators", "fetch/read reads blobs"),
    ("fetch/read", "bowstring/internal/readtest", "internal holds suites"),
    ("cmd/bowstring/command", "bowstring/internal/delay", "internal holds suites"),
    ("fetch/spans", "bowstring/fetch/upcoming", "fetch/spans is a tier"),
    ("fetch/peers", "bowstring/fetch/prefetch", "fetch/peers is a tier"),
    ("flight/peer", "bowstring/flight/policy", "flight/peer carries asks"),
    ("fetch/upcoming", "bowstring/fetch/prefetch", "fetch/upcoming prefetches"),
    ("fetch/lineage", "bowstring/fetch/plan", "fetch/lineage keeps what streams handed out"),
    ("fetch/store/local", "google.golang.org/grpc", "gRPC is flight's business"),
    ("flight/policy", "bowstring/fetch", "flight/policy decides who may do what"),
    ("flight/catalog", "bowstring/flight/auth", "flight/catalog is the one way"),
    ("flight/catalog", "google.golang.org/grpc", "gRPC is flight's business"),
    ("flight/upload", "bowstring/flight/auth", "flight/upload stores what comes in"),
    ("flight/audit", "bowstring/flight/policy", "flight/audit keeps a record of events"),
    ("flight/usage", "bowstring/flight/policy", "flight/usage keeps a book"),
    ("flight", "bowstring/spill", "flight speaks the protocol"),
    ("flight", "bowstring/cmd/tool", "flight speaks the protocol"),
    ("cmd/bowstring/admin", "bowstring/flight", "they import nothing of ours"),
    ("cmd/bowstring/tracing", "bowstring/schema", "they import nothing of ours"),
    ("flight/auth", "bowstring/fetch", "flight/auth says who calls"),
    ("cmd/bowstring/console", "bowstring/fetch", "is a Flight client with the rights of who looks"),
    ("cmd/bowstring/console", "bowstring/fetch/store", "is a Flight client with the rights of who looks"),
    ("internal/links", "bowstring/fetch", "carries bytes between processes"),
    ("cmd/bowstring/apply", "bowstring/fetch", "makes cells of what comes over a pipe"),
    ("cmd/bowstring/watch", "bowstring/fetch/prefetch", "computes from a server's statistics"),
    ("internal/simulate", "bowstring/flight", "runs engines and clusters over models"),
    ("internal/simulate", "bowstring/fetch/store/local", "runs engines and clusters over models"),
]
ALLOWED = [
    ("fetch/plan", "bowstring/schema"),
    ("fetch/plan", "bowstring/fetch/layout"),
    ("fetch/store/local", "bowstring/spill/segment"),
    ("fetch/prefetch", "bowstring/fetch/read"),
    ("fetch/operators/images", "bowstring/fetch/operators/program"),
    ("fetch", "bowstring/fetch/plan"),
    ("flight", "bowstring/fetch"),
    ("flight/auth", "bowstring/schema"),
    ("flight/wire", "bowstring/flight/shm"),
    ("flight", "bowstring/flight/policy"),
    ("flight/policy", "bowstring/fetch/admission"),
    ("flight/catalog", "bowstring/fetch"),
    ("flight/upload", "bowstring/flight/catalog"),
    ("cmd/bowstring/command", "bowstring/flight"),
    ("internal/links", "bowstring/internal/delay"),
    ("cmd/bowstring/apply", "bowstring/fetch/operators"),
    ("cmd/bowstring/metrics", "bowstring/flight"),
    ("cmd/bowstring/console", "bowstring/flight"),
]


def lint(root: Path, importer: str, imported: str) -> subprocess.CompletedProcess[str]:
    """Lint a module in which one package imports another; there is nothing else in it."""
    shutil.copy(ROOT / ".golangci.yml", root)
    path = "google.golang.org/grpc" if imported.startswith("google") else ""
    module = "module bowstring\n\ngo 1.26.0\n"
    if path:
        module += f"\nrequire {path} v1.0.0\n\nreplace {path} => ./grpc\n"
        (root / "grpc").mkdir()
        (root / "grpc" / "go.mod").write_text(f"module {path}\n\ngo 1.26.0\n")
        (root / "grpc" / "grpc.go").write_text("// Package grpc stands in.\npackage grpc\n")
    (root / "go.mod").write_text(module)
    packages = {importer: f'import _ "{imported}" // what is tested\n'}
    if not path:
        packages[imported.removeprefix("bowstring/")] = ""
    for folder, text in packages.items():
        name = folder.rpartition("/")[2]
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{name}.go").write_text(f"// Package {name} is here to be linted.\npackage {name}\n\n{text}")
    return subprocess.run(
        [LINTER, "run", "--allow-parallel-runners", "--enable-only", "depguard", "./..."],
        cwd=root,
        env=os.environ | {"GOLANGCI_LINT_CACHE": str(root.parent / "lint-cache")},  # not to wait for another linter
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("importer", "imported", "reason"), FORBIDDEN)
def test_forbidden_import_is_found(importer: str, imported: str, reason: str, tmp_path: Path) -> None:
    done = lint(tmp_path, importer, imported)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(depguard)" in done.stdout
    assert imported in done.stdout
    assert reason in done.stdout


@pytest.mark.parametrize(("importer", "imported"), ALLOWED)
def test_allowed_import_passes(importer: str, imported: str, tmp_path: Path) -> None:
    done = lint(tmp_path, importer, imported)
    assert done.returncode == 0, done.stdout + done.stderr
