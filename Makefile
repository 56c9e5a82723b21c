# Everything this file needs beyond Go, a C compiler and Python it installs by
# itself, pinned: Go tools from tools/go.mod into build/tools, Python packages
# from python/requirements/*.txt (with hashes) into .venv.

PYTHON ?= python3
GO     ?= go
VENV   := .venv
PY     := $(VENV)/bin/python
REQ    := python/requirements
BIN    := build/bin/bowstring
LINT   := build/tools/golangci-lint

# Where Python code of this repository lives.
PY_SRC := $(wildcard bench examples notebooks python tests)
# The race detector slows pure arithmetic tenfold and finds nothing in a package without goroutines.
RACE_SKIP := bowstring/fetch/plan
FUZZ_TIME ?= 30s
SOAK_TIME ?= 600
SOAK_KILLS ?= 5000

export PYTHONDONTWRITEBYTECODE := 1
# uv trusts whom the system trusts, a company's proxy among them, and waits for a slow one.
export UV_SYSTEM_CERTS := 1
export UV_HTTP_TIMEOUT := 300

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

.PHONY: help
help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(VENV)/.demo build ## Import real photographs, serve them, train on them for two epochs.
	@$(PY) examples/demo.py --bowstring $(BIN) --dir build/demo

.PHONY: test
test: lint test-go test-race test-cassandra test-python ## Everything that has to pass: lint, Go tests, race detector, Cassandra, end to end.

.PHONY: lint
lint: lint-go lint-python docs ## golangci-lint with the import rule, ruff and mypy, the documents' references.

.PHONY: bench
bench: $(VENV)/.package build ## Measure side by side: all cases, or one with CASE=name.
	@$(PY) bench/run.py $(CASE)

.PHONY: build
build: go-check ## Build build/bin/bowstring.
	$(GO) build -o $(BIN) ./cmd/bowstring

.PHONY: fmt
fmt: $(LINT) $(VENV)/.lint ## Format Go and Python.
	$(LINT) fmt ./...
	$(VENV)/bin/ruff check --fix --quiet $(PY_SRC)
	$(VENV)/bin/ruff format $(PY_SRC)

.PHONY: clean
clean: ## Remove everything that make has built or installed.
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache

# --- the parts of test and lint -------------------------------------------

.PHONY: lint-go
lint-go: $(LINT) ## golangci-lint alone.
	$(LINT) run ./...

.PHONY: lint-python
lint-python: $(VENV)/.lint $(VENV)/.package ## ruff and mypy alone.
	$(VENV)/bin/ruff check $(PY_SRC)
	$(VENV)/bin/ruff format --check $(PY_SRC)
	$(VENV)/bin/mypy

.PHONY: docs
docs: $(VENV)/.docs ## Build the documentation of the Python package in build/docs; a reference to nothing is an error.
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict -f python/mkdocs.yml

.PHONY: test-go
test-go: go-check ## Go tests: unit, property, conformance, fuzz seeds.
	$(GO) test -timeout 20m ./...

.PHONY: test-race
test-race: go-check cc-check ## Go tests under the race detector.
	$(GO) test -timeout 20m -race $$($(GO) list ./... | grep -v -x -F '$(RACE_SKIP)')

# What runs against the shared node a second time, under the race detector and
# with gocql itself: what has many goroutines, and what the drivers differ in.
# The whole of it would take minutes each. Three nodes, TLS and passwords are
# started once, by the first run.
CASSANDRA_RACE  := TestConformance/(concurrent|close|stress|gc_under)|TestTwoImporters|TestUnknownOutcome
CASSANDRA_GOCQL := TestConformance/(commit|dedup|reopen|numbers|cancelled|stress)|TestUnknownOutcome|TestAttach$$|TestCloseLeavesNothing

.PHONY: test-cassandra
test-cassandra: go-check cc-check ## fetch/store/cql against a real Cassandra from Maven Central (needs Java 17 and Maven), and without gocql's replacement.
	$(GO) build -modfile=go.gocql.mod ./...
	$(GO) test -modfile=go.gocql.mod ./fetch/store/cql
	tests/cassandra/cassandra.sh with $(MAKE) --no-print-directory test-cassandra-shared

.PHONY: test-cassandra-shared
test-cassandra-shared:
	$(GO) test -timeout 20m -tags cassandra ./fetch/store/cql
	$(GO) test -timeout 10m -tags cassandra -race -short -run '$(CASSANDRA_RACE)' ./fetch/store/cql
	$(GO) test -timeout 10m -tags cassandra -modfile=go.gocql.mod -short -run '$(CASSANDRA_GOCQL)' ./fetch/store/cql

.PHONY: test-python
test-python: $(VENV)/.package $(LINT) build ## pytest with pyarrow and other real clients against a server process.
	$(PY) -m pytest

.PHONY: notebooks
notebooks: $(VENV)/.package build ## Run the notebooks against servers of their own, and keep their outputs.
	KEEP_OUTPUTS=1 $(PY) -m pytest tests/python/test_notebooks.py

.PHONY: fuzz
fuzz: go-check ## Run each fuzz target for FUZZ_TIME (30s).
	@for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "== $$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) $$pkg || exit 1; \
	  done; \
	done

.PHONY: soak
soak: $(VENV)/.package build ## Readers, writers, kills and collections for SOAK_TIME (600) seconds; SOAK_KILLS (5000) kills of a spill.
	$(PY) -m pytest -m soak --soak-seconds $(SOAK_TIME) -s tests/test_soak.py
	$(GO) test -timeout 0 -run '^TestKill$$' -v ./spill -args -kills=$(SOAK_KILLS)

# --- tools ----------------------------------------------------------------

.PHONY: go-check
go-check:
	@command -v $(GO) >/dev/null || { echo "Go 1.26 or newer is needed (https://go.dev/dl); '$(GO)' was not found" >&2; exit 1; }
	@$(GO) list -m >/dev/null || { echo "Go 1.26 or newer is needed (https://go.dev/dl); this is $$(GOTOOLCHAIN=local GOFLAGS= $(GO) env GOVERSION)" >&2; exit 1; }

.PHONY: cc-check
cc-check:
	@command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null || { echo "the race detector needs a C compiler (gcc or clang, in CC or on the path)" >&2; exit 1; }

$(LINT): tools/go.mod tools/go.sum | go-check
	@echo "building golangci-lint (some minutes, once)"
	@mkdir -p $(@D)
	cd tools && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o ../$@ tool

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.10 or newer is needed; '$(PYTHON)' was not found (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; $$($(PYTHON) --version 2>&1) is too old (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is needed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp for each lock file; nothing is installed whose hash is not in it. uv
# does it, as pip takes nine times as long for the 3 GB that torch brings; pip
# does where uv cannot, as it does not know pip's settings for an index or a proxy.
INSTALL = install() { $(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes -r $$1 || \
  $(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $$1; }; install

$(VENV)/.uv: $(VENV)/.python $(REQ)/uv.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $(REQ)/uv.txt
	@touch $@

$(VENV)/.demo: $(VENV)/.uv $(REQ)/demo.txt
	$(INSTALL) $(REQ)/demo.txt
	@touch $@

$(VENV)/.test: $(VENV)/.demo $(REQ)/test.txt
	$(INSTALL) $(REQ)/test.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.test $(REQ)/lint.txt
	$(INSTALL) $(REQ)/lint.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.test $(REQ)/docs.txt
	$(INSTALL) $(REQ)/docs.txt
	@touch $@

# The package is used as its users have it: built as a wheel, and installed from
# that. Its dependencies are in test.txt; hatchling builds it without a network.
$(VENV)/.package: $(VENV)/.test python/pyproject.toml python/README.md python/LICENSE $(shell find python/src -name '*.py' -o -name py.typed)
	@rm -rf build/wheel
	$(PY) -m build --wheel --no-isolation --outdir build/wheel python >build/wheel.log || { cat build/wheel.log; exit 1; }
	$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-index --reinstall build/wheel/bowstring-*.whl
	@touch $@

.PHONY: wheel
wheel: $(VENV)/.package ## Build the Python package in build/wheel, and install it into .venv.

.PHONY: lock
lock: $(VENV)/.uv ## Resolve python/requirements/*.in again, with hashes.
	cd $(REQ) && for set in uv demo test lint docs; do \
	  ../../$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes $$set.in -o $$set.txt || exit 1; \
	done
