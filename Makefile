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
PY_SRC := $(wildcard bench examples notebooks python tests tools)
FUZZ_TIME ?= 30s
HOURS ?= 2
SOAK_ARGS ?=
SOAK_TIME ?= 600
SOAK_KILLS ?= 5000
SOAK_SEEDS ?= 100000
STORE_SEEDS ?= 1000000
CHURN_SEEDS ?= 10000
CLUSTER_SEEDS ?= 1000
NODE_SEEDS ?= 20
LOAD_MINUTES ?= 10
FAULT_TIME ?= 600
# Rounds of a case of make bench, and the width of the confidence interval of a ratio that ends them.
ROUNDS ?= 6..20
CONFIDENCE ?= 0.02
# How many stages of check and test run at once. They wait for disks, servers and each other's caches as much as they compute.
JOBS ?= 2
# How many processes pytest spreads the test files over.
WORKERS ?= 2
# Runs a command as a stage, by name: its time is printed at the end.
STAGE  := $(PYTHON) tests/stages.py run

# Python's compiled modules are in build, not next to their source. Without them each of
# the tests' many processes would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
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

.PHONY: check
check: go-check python-check ## Between two edits: lint, and the short tests of Go and Python.
	@$(STAGES) $(PARALLEL) test-short lint test-quick

.PHONY: test
test: go-check cc-check python-check ## Everything that has to pass: lint, every test once, against Cassandra and other real clients.
	@tests/cassandra/cassandra.sh beside $(STAGES) $(PARALLEL) test-python test-lowest lint test-race test-cassandra test-objects test-go

.PHONY: nightly
nightly: go-check cc-check python-check ## The tests that repeat, for hours: all under the race detector and without, gocql itself, fuzzing, soak.
	@BOWSTRING_TESTS=all $(STAGES) $(PARALLEL) --jobs=1 WORKERS=0 FUZZ_TIME=3m lint nightly-vulnerabilities nightly-go nightly-race nightly-spec nightly-wheels nightly-sbom nightly-release nightly-image nightly-helm nightly-dali nightly-dlio nightly-frameworks nightly-formats nightly-pythons nightly-extras-lowest nightly-extras-newest nightly-kubernetes nightly-clients test-cassandra nightly-objects nightly-bucket nightly-bench test-gocql test-faults nightly-churn test-python nightly-python nightly-fuzz nightly-soak

.PHONY: lint
lint: lint-go lint-python lint-vulnerabilities site ## golangci-lint with the import rule, ruff and mypy, known vulnerabilities, the documents' references.

.PHONY: bench
bench: $(VENV)/.package build $(if $(filter own_data,$(or $(CASE),own_data)),build/mosaicml/.installed) $(if $(filter dlio,$(CASE)),build/dlio/.installed) ## Measure side by side: all cases, or one with CASE=name. Rounds are added until ratios are sure (ROUNDS=6..20, CONFIDENCE=.02).
	@$(PY) bench/run.py $(CASE) --rounds=$(ROUNDS) --confidence=$(CONFIDENCE)

# Only the headline of cassandra-dali-plugin needs these packages; DALI has 788 MB. What cannot be installed is left out.
.PHONY: headlines
headlines: $(VENV)/.package build ## Measure beside five published systems, in at most 90 minutes, and write docs/headlines.md: all, or one with CASE=deli.
	@for name in $(if $(filter dali,$(or $(CASE),dali)),mosaicml dali); do $(MAKE) --no-print-directory build/$$name/.installed || echo "headlines: $$name is left out"; done
	@$(PY) bench/headlines.py $(CASE)

.PHONY: headlines-page
headlines-page: $(VENV)/.package ## Write docs/headlines.md and its plots from the stored results.
	@$(PY) bench/headlines.py --render

# For x86-64, whose machines have most GPUs.
.PHONY: bench-gpu
bench-gpu: $(VENV)/.test go-check ## Build the folder build/bench-gpu, with all that a machine with a GPU needs to measure (docs/benchmarks/gpu.md).
	@rm -rf build/wheels
	@$(MAKE) --no-print-directory wheel-for GOARCH=amd64 MACHINE=x86_64
	@GOARCH=amd64 $(RELEASE) -o build/lab/bowstring-lab ./cmd/bowstring-lab
	@PYTHONPATH=bench:examples $(PY) -m gpu.bundle --out build/bench-gpu --wheel build/wheels/*.whl --lab build/lab/bowstring-lab

.PHONY: diagrams
diagrams: go-check ## Draw the pictures of docs/ARCHITECTURE.md from the texts beside them.
	@for name in doget:elk cluster:dagre; do \
	  $(GO) run oss.terrastruct.com/d2@v0.7.1 --layout $${name#*:} --pad 10 docs/diagrams/$${name%:*}.d2 docs/diagrams/$${name%:*}.svg; done

.PHONY: screenshots
screenshots: $(VENV)/.package build ## Take the pictures of the console in docs/console, with jobs that run.
	@PYTHONPATH=examples $(PY) tests/screenshots.py $(dir $(BIN)) docs/console

.PHONY: shape
shape: go-check ## Count what the program is made of, and what a DoGet goes through: lines, packages, the largest types, references, flags, hops, hand-offs, locks.
	@go run ./bench/shape

.PHONY: words
words: $(VENV)/.test ## Count words of the old dialect, long sentences of documents and names without a comment; everything is in build/words.json. It informs, and fails nothing.
	@$(PY) tests/words.py --json build/words.json

.PHONY: build
build: go-check ## Build build/bin/bowstring, and build/bin/bowstring-lab for experiments.
	@$(STAGE) build $(GO) build -o $(dir $(BIN)) ./cmd/bowstring ./cmd/bowstring-lab

.PHONY: fmt
fmt: $(LINT) $(VENV)/.lint ## Format Go and Python.
	$(LINT) fmt ./...
	$(VENV)/bin/ruff check --fix --quiet $(PY_SRC)
	$(VENV)/bin/ruff format $(PY_SRC)

.PHONY: clean
clean: ## Remove everything that make has built or installed.
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache

# --- the parts of check, test and nightly ----------------------------------

# The stages that a command runs, and after them where the time went; its status is theirs.
STAGES := $(PYTHON) tests/stages.py all
# Side by side, each heard when it has ended. One that fails does not stop the others.
PARALLEL := $(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going

.PHONY: lint-go
lint-go: $(LINT) ## golangci-lint alone.
	@$(STAGE) lint-go $(LINT) run --allow-parallel-runners ./...

.PHONY: lint-python
lint-python: $(VENV)/.lint $(VENV)/.package ## ruff and mypy alone.
	@$(STAGE) lint-python sh -e -c '$(VENV)/bin/ruff check $(PY_SRC); $(VENV)/bin/ruff format --check $(PY_SRC); $(VENV)/bin/mypy'

# The advisories come as a Go module, of a fixed version: a commit that passed keeps passing. make nightly takes the newest.
VULNDB ?= golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018
VULNCHECK := build/tools/govulncheck

.PHONY: lint-vulnerabilities
lint-vulnerabilities: $(VULNCHECK) build ## govulncheck alone: no function with a known vulnerability is in the program.
	@$(STAGE) lint-vulnerabilities sh -e -c 'db=$$($(GO) -C tools/vuln mod download -json $(VULNDB) | sed -n "s/.*\"Dir\": \"\(.*\)\".*/\1/p"); \
	  $(VULNCHECK) -format json -mode binary -db "file://$$db/data/osv" $(BIN) | $(PYTHON) tests/vulnerabilities.py go.mod'

.PHONY: site
site: $(VENV)/.docs ## Build the documentation as a site in build/site, with the reference of the Python package; a dead reference is an error.
	@$(STAGE) site $(PY) tools/site/site_pages.py

# Every Go test runs once in `make test`: test-race has all but the following, test-go these, test-cassandra those of CQL.
# go test has no need to vet them: golangci-lint does, with more checks. No debugger looks at them: linked without what it
# would read, each of the hundred binaries takes two seconds less.
GO_TEST := $(GO) test -json -vet=off -ldflags=-w
# Packages without goroutines, and one in virtual time: the race detector slows arithmetic tenfold, and finds nothing there.
# And one that bounds the memory of a server, of which the detector takes several times as much.
ALONE := $(addprefix bowstring/,fetch/operators/images fetch/operators/images/codec/webp fetch/operators/audio \
  fetch/operators/audio/dsp fetch/operators/audio/vorbis fetch/layout fetch/plan fetch/where schema schema/checksum \
  schema/checksum/forge spill/replay spill/scale internal/hostile internal/simulate)
# Tests that compute, or kill processes of their own, far more than they synchronise: in virtual time, at random against an
# oracle, of damaged bytes, in little memory. The others of their packages are raced here, and all of them in `make nightly`.
empty :=
PLAIN := $(subst $(empty) $(empty),|,$(strip \
  TestKill TestPowerLoss TestAnyCalls TestMetamorphic TestSimulation TestSimulationRepeats TestPlanted TestFlippedDatabase \
  TestFlippedJournal TestTableOfGaps TestMergeShares TestSuiteFindsMistakes TestRunsInOrder TestRunsNearlyInOrder TestShuffledInPart TestShuffledOnce \
  TestEveryOrderServesEachSampleOnce TestBucketsDoNotChangeTheOrder TestIdleStreamsTakeNoShare TestServedFurtherThanIsPlanned \
  TestMixing TestSlowConsumerFindsItsBatch TestHedges TestStreamFillsThePath TestTenantsShareByWeight TestTenantsShareEvenly \
  TestTenantReads TestJobsShareEvenly TestLooseOrdersFollowTheSpill TestInFlightFollowsThePath TestRequestsOfAnEpoch TestResume \
  TestChurn TestCrowdInLittleMemory TestServedWithoutBlobs TestPaceSimulated TestRowsAreTheSameHoweverTheyAreRead \
  TestAlterProperty TestZones TestClusterChurn TestHostileBytesBetweenNodes \
  TestBudgetOfManyRates TestBudgetOfPrefixes TestBudgetOfWholeBucket TestBudgetIsShared TestBudgetIsFair TestBudgetFollows \
  TestBudgetOfManyNodes TestBudgetTellsRefusalsApart TestBudgetOfNodesByPrefix TestBudgetOfAServer TestManyKeys \
  TestConformanceFaults TestConformanceDirectory TestLostAnswers TestCopyEndsAnywhere TestRebuildKilled TestDamagedStaysReadable \
  TestIndexesThatDiffer TestIndexesOfLargeTars TestListRanges TestListRangesOfMany TestLargeImage TestDamagedChunks TestMDSWalk \
  TestDecompressionBombs TestMDSBombs TestChunkBombs TestManyBadRows TestKeySorter TestDamagedParquet TestRoundTrip TestAttachResumes TestAttachUpdateShards TestAttachLazy \
  TestAttachFromFaultyS3 TestAttachedEqualsImported TestAttachUpdateOfAltered \
  TestPlainTransport TestDecodedBodiesTakeWhatIsCounted TestSharedIsTheSameBatch TestFramesRoundTrip TestServerIsEveryDataset \
  TestStoreIsAStore TestFlippedBits TestFewBlobsOfManySegments TestDirect TestDirectFromFrames TestFindsFaults))
PLAIN_IN = $(filter-out $(ALONE) bowstring/fetch/store/cql,$(shell grep -rlE 'func ($(PLAIN))[^A-Za-z0-9_]' --include=*_test.go cmd fetch flight internal spill \
  | xargs -r -n 1 dirname | sort -u | sed 's|^|bowstring/|'))
CQL := ./fetch/store/cql
RACED = $(filter-out $(ALONE) bowstring/fetch/store/cql,$(shell $(GO) list ./...))

.PHONY: test-go
test-go: go-check ## Go tests that need no race detector: pure packages, and those that compute or kill processes.
	@$(STAGE) --go test-go-pure $(GO_TEST) -timeout 40m $(ALONE)
	@$(STAGE) --go test-go-plain $(GO_TEST) -timeout 40m -run '^($(PLAIN))$$' $(PLAIN_IN)

.PHONY: test-race
test-race: go-check cc-check ## All other Go tests, under the race detector.
	@$(STAGE) --go test-race $(GO_TEST) -timeout 40m -race -skip '^($(PLAIN))$$' $(RACED)

.PHONY: test-cassandra
test-cassandra: go-check cc-check ## fetch/store/cql against a real Cassandra from Maven Central (needs Java 17 and Maven).
	@$(STAGE) --go test-cassandra tests/cassandra/cassandra.sh with $(GO_TEST) -timeout 40m -tags cassandra -race $(CQL)

# Tests against real object stores have a name that begins with TestReal, in files of the build tag objects.
OBJECTS_IN = $(shell grep -rlE '^//go:build objects$$' --include=*_test.go cmd fetch | xargs -r -n 1 dirname | sort -u | sed 's|^|./|')

.PHONY: test-objects
test-objects: go-check ## The tests that read and write buckets, against real servers of S3 and Google Cloud Storage from their Go modules.
	@$(STAGE) --go test-objects tests/objects/objects.sh with $(GO_TEST) -timeout 40m -tags objects -run '^TestReal' -skip 'Azure|Stress' $(OBJECTS_IN)

.PHONY: nightly-objects
nightly-objects: go-check cc-check ## The same under the race detector, against Azurite, too, a server of Azure Blob Storage from npm (needs Node.js), and 32 writers at once for some seconds.
	@$(STAGE) --go nightly-objects sh -e -c 'tests/objects/objects.sh fetch-azurite; \
	  tests/objects/objects.sh with $(GO_TEST) -timeout 40m -tags objects -race -run "^TestReal" $(OBJECTS_IN)'

.PHONY: nightly-bucket
nightly-bucket: go-check cc-check ## 32 writers at a store in a bucket of a real server for ten minutes, killed and cut (BOWSTRING_STRESS=10m).
	@$(STAGE) --go nightly-bucket tests/objects/objects.sh with env BOWSTRING_STRESS=$${BOWSTRING_STRESS:-10m} \
	  $(GO_TEST) -count=1 -timeout 60m -tags objects -run '^TestRealVersityStress$$' ./fetch/store/bucket

.PHONY: test-short
test-short: go-check ## All Go tests with -short, without the race detector and Cassandra.
	@$(STAGE) --go test-short $(GO_TEST) -timeout 5m -short ./...

PYTEST = $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test-python
test-python: $(VENV)/.package $(VENV)/.docs $(LINT) build ## pytest with pyarrow and other real clients against a server process.
	@$(STAGE) test-python $(PYTEST) --junitxml=build/stages/test-python.xml

.PHONY: nightly-python
nightly-python: $(VENV)/.package build ## The part of pytest that is marked nightly: more notebooks, frameworks and ways to start workers.
	@$(STAGE) nightly-python $(PYTEST) -m nightly --junitxml=build/stages/nightly-python.xml

.PHONY: test-quick
test-quick: $(VENV)/.package build ## The part of pytest that takes no more than a minute.
	@$(STAGE) test-quick $(PYTEST) -m 'not slow and not nightly and not soak and not image and not clients and not kubernetes and not helm and not release' --junitxml=build/stages/test-quick.xml

# Files of tests that need no package but those of tests/pythons.sh: no pandas, torch or Ray.
PLAIN_TESTS := $(addprefix tests/python/test_,arrays.py core.py dtypes.py polars.py client_auth.py cut_off.py errors.py finalizers.py forks.py laptop.py logged.py moving.py polars_filters.py receiving.py silent.py stream.py)
# The oldest Python first, which is the one that the lowest versions have wheels for.
PYTHONS := 3.10 3.11 3.12 3.13

.PHONY: test-lowest
test-lowest: $(VENV)/.package build ## The Python package with the lowest version of each dependency, and without pandas.
	@$(STAGE) test-lowest tests/pythons.sh $(firstword $(PYTHONS)) $(REQ)/lowest.txt --junitxml=build/stages/test-lowest.xml tests/python/test_arrays.py tests/python/test_core.py

.PHONY: nightly-pythons
nightly-pythons: $(VENV)/.package build ## The Python package with each Python that it supports, as far as they can be had, and with the lowest versions.
	@for v in $(PYTHONS); do $(STAGE) nightly-python-$$v tests/pythons.sh $$v $(REQ)/pythons.txt $(PLAIN_TESTS) || failed="$$failed $$v"; done; \
	  $(STAGE) nightly-lowest tests/pythons.sh $(firstword $(PYTHONS)) $(REQ)/lowest.txt $(PLAIN_TESTS) || failed="$$failed lowest"; test -z "$$failed"

# Each alone and all together. DALI takes 788 MB, and is in nightly-dali. The lowest versions need Python 3.10, which Grain
# does not support.
EXTRAS ?= torch ray grain polars sql tokens notebook
.PHONY: nightly-extras-lowest
nightly-extras-lowest: $(VENV)/.package build ## The Python package with each extra (EXTRAS=…) and all, in the lowest versions. Some GB of downloads.
	@$(STAGE) nightly-extras-lowest tests/extras.sh lowest $(filter-out grain,$(EXTRAS))

.PHONY: nightly-extras-newest
nightly-extras-newest: $(VENV)/.package build ## The same in the newest versions that the index has.
	@$(STAGE) nightly-extras-newest tests/extras.sh newest $(EXTRAS)

.PHONY: test-gocql
test-gocql: go-check ## fetch/store/cql with gocql itself, without its replacement, against a real Cassandra.
	@$(STAGE) gocql-build $(GO) build -modfile=go.gocql.mod -tags gocql ./...
	@$(STAGE) --go test-gocql tests/cassandra/cassandra.sh with $(GO_TEST) -timeout 30m -tags cassandra,gocql -modfile=go.gocql.mod $(CQL)

.PHONY: test-faults
test-faults: go-check ## Three nodes of Cassandra for FAULT_TIME (600) seconds of kills, stops, lost messages and wrong clocks; FAULT_ARGS=-seed=S repeats a schedule.
	@mkdir -p build/faults
	@$(STAGE) test-faults $(GO) test -v -count=1 -timeout 0 -tags cassandra,planted -run '^TestFaults$$' ./internal/faults \
	  -args -length=$(FAULT_TIME)s -keep=$(CURDIR)/build/faults $(FAULT_ARGS)

.PHONY: nightly-go
nightly-go: go-check
	@$(STAGE) --go nightly-go $(GO_TEST) -count=1 -timeout 60m ./...

.PHONY: nightly-race
nightly-race: go-check cc-check
	@$(STAGE) --go nightly-race $(GO_TEST) -count=1 -timeout 90m -race ./...

.PHONY: nightly-vulnerabilities
nightly-vulnerabilities: ## govulncheck with the newest advisories.
	@$(MAKE) --no-print-directory lint-vulnerabilities VULNDB=golang.org/x/vulndb@latest

.PHONY: nightly-spec
nightly-spec: ## The protocol of stores, written in TLA+, by the model checker TLC from Maven Central (needs Java and Maven).
	@$(STAGE) nightly-spec fetch/store/protocol/spec/check.sh

.PHONY: nightly-wheels
nightly-wheels: $(VENV)/.test go-check ## The wheels for each processor, twice: the same bytes come out.
	@$(STAGE) nightly-wheels sh -e -c '$(MAKE) wheels; rm -rf build/wheels-once; mv build/wheels build/wheels-once; GOCACHE=$(CURDIR)/build/gocache $(MAKE) wheels; \
	  for f in build/wheels/*.whl; do cmp "$$f" "build/wheels-once/$${f##*/}"; done; rm -rf build/wheels-once build/gocache'

.PHONY: nightly-image
nightly-image: $(VENV)/.package build ## The container image, run by runc: a read-only root, not root, an import and a stream.
	@$(STAGE) nightly-image sh -e -c '$(MAKE) image; $(PY) -m pytest -m image tests/test_image.py'

.PHONY: nightly-clients
nightly-clients: $(VENV)/.test build ## Flight clients in Java and Rust, from Maven Central and crates.io, through TLS and tokens; more trainers (needs a JDK 17, Maven and Rust).
	@$(STAGE) nightly-clients $(PY) -m pytest -m clients tests/test_clients.py tests/python/test_ray_nodes.py tests/python/test_trainers.py tests/python/test_frameworks_page.py

# A program that renders the chart by Helm's own library; three minutes of CPU time, once.
RENDER := build/helm/render
$(RENDER): $(wildcard deploy/helm/*.go) deploy/helm/go.mod deploy/helm/go.sum | go-check
	@mkdir -p $(@D)
	@$(GO) -C deploy/helm build -o $(CURDIR)/$@ .

.PHONY: nightly-helm
nightly-helm: $(VENV)/.package $(VENV)/.helm $(RENDER) build ## The Helm chart: all variants of its values, rendered, and checked against the schemas of Kubernetes' versions.
	@$(STAGE) nightly-helm sh -e -c '$(GO) -C deploy/helm test -count=1 ./...; $(PY) -m pytest -m helm tests/test_helm.py'

.PHONY: nightly-formats
nightly-formats: $(VENV)/.package build/formats/.installed build ## Imports of what LitData and the package tfrecord write, which are in build/formats.
	@$(STAGE) nightly-formats env PYTHONPATH=$(CURDIR)/build/formats $(PY) -m pytest tests/test_import_chunks.py

.PHONY: nightly-dali
nightly-dali: $(VENV)/.package build/dali/.installed build ## Pipelines of DALI without a GPU, which is in build/dali.
	@$(STAGE) nightly-dali env PYTHONPATH=$(CURDIR)/build/dali $(PY) -m pytest tests/python/test_dali.py

# Its NumPy, pandas and pyarrow are older than those of .venv, for TensorFlow's sake.
.PHONY: nightly-dlio
nightly-dlio: $(VENV)/.package build/dlio/.installed build ## A workload of DLIO, MLPerf Storage's benchmark, which is in build/dlio.
	@$(STAGE) nightly-dlio env PYTHONPATH=$(CURDIR)/build/dlio LD_LIBRARY_PATH=$(CURDIR)/build/dlio/lib $(PY) -m pytest tests/python/test_dlio.py

.PHONY: nightly-frameworks
nightly-frameworks: $(VENV)/.package build/frameworks/.installed build ## JAX on the devices of a mesh, and Lhotse, which are in build/frameworks.
	@$(STAGE) nightly-frameworks env PYTHONPATH=$(CURDIR)/build/frameworks $(PY) -m pytest tests/python/test_jax.py tests/python/test_frameworks_page.py -k 'jax or lhotse'

# The control plane: nine minutes of CPU time, once; then what is in ~/.cache/bowstring.
.PHONY: nightly-kubernetes
nightly-kubernetes: $(VENV)/.package $(RENDER) build image ## The chart in a real control plane, its pods run by runc: upgraded and drained while a client reads. Needs root.
	@$(PY) tests/kubernetes/unpack.py build/image build/kubernetes-image
	@tests/cassandra/cassandra.sh fetch
	@$(STAGE) nightly-kubernetes sh -e -c 'tests/kubernetes/kubernetes.sh build; \
	  tests/kubernetes/kubernetes.sh with $(CURDIR)/build/kubernetes-image $(PY) -m pytest -s -m kubernetes tests/test_kubernetes.py'

.PHONY: nightly-sbom
nightly-sbom: go-check ## The bills of materials, twice: the same bytes come out.
	@$(STAGE) nightly-sbom sh -e -c '$(GO) -C deploy/sbom test ./...; $(MAKE) sbom; rm -rf build/sbom-once; mv build/sbom build/sbom-once; $(MAKE) sbom; \
	  diff -r build/sbom build/sbom-once; rm -rf build/sbom-once'

.PHONY: nightly-release
nightly-release: $(VENV)/.docs $(RENDER) build ## A whole release of a copy of the tree, twice, and what users do with it: verify, install, read a dataset.
	@$(STAGE) nightly-release $(PY) -m pytest -m release tests/test_release.py

.PHONY: nightly-churn
nightly-churn: $(VENV)/.package build ## Four real nodes that are killed, stopped, cut off, leave and join: NODE_SEEDS (20) seeds; their view under load for LOAD_MINUTES (10).
	@$(STAGE) nightly-churn env NODE_SEEDS=$(NODE_SEEDS) LOAD_MINUTES=$(LOAD_MINUTES) $(PY) bench/run.py churn

.PHONY: nightly-bench
nightly-bench: $(VENV)/.package build ## Each case of make bench with little of everything: whether it works, in seconds.
	@$(STAGE) nightly-bench $(PY) bench/run.py --smoke

.PHONY: nightly-fuzz
nightly-fuzz:
	@$(STAGE) fuzz $(PARALLEL) --jobs=1 fuzz

.PHONY: nightly-soak
nightly-soak:
	@$(STAGE) soak $(PARALLEL) --jobs=1 soak HOURS=.02
	@$(STAGE) soak-parts $(PARALLEL) --jobs=1 soak-parts

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
soak: $(VENV)/.package build ## Servers, clients of all kinds and faults together for HOURS (2; may be a fraction): each sample is checked, growth is found. The report is build/soak/report.md.
	PYTHONPATH=bench $(PY) -m soak.run --hours $(HOURS) $(SOAK_ARGS)

.PHONY: soak-parts
soak-parts: $(VENV)/.package build ## Single parts for long: readers, writers, kills and collections for SOAK_TIME (600) seconds; SOAK_KILLS (5000) kills of a spill; SOAK_SEEDS (100000) of operations at random; STORE_SEEDS (1000000) of the simulated store; CHURN_SEEDS (10000) of nodes that come and go, CLUSTER_SEEDS (1000) of whole clusters.
	$(PY) -m pytest -m soak --soak-seconds $(SOAK_TIME) -s tests/test_soak.py
	$(GO) test -timeout 0 -run '^TestKill$$' -v ./spill -args -kills=$(SOAK_KILLS)
	$(GO) test -timeout 0 -run '^TestMetamorphic$$' -v ./fetch/metamorphic -args -from=0 -seeds=$(SOAK_SEEDS)
	$(GO) test -timeout 0 -run '^TestSimulation$$' -v ./fetch/store/protocol -args -from=0 -seeds=$(STORE_SEEDS)
	$(GO) test -timeout 0 -run '^TestChurn$$' ./fetch -args -churn-seeds=$(CHURN_SEEDS)
	$(GO) test -timeout 0 -run '^TestClusterChurn$$' ./cmd/bowstring/cluster -args -churn-seeds=$(CLUSTER_SEEDS)

# --- tools ----------------------------------------------------------------

.PHONY: go-check
go-check:
	@command -v $(GO) >/dev/null || { echo "Go 1.26 or newer is needed (https://go.dev/dl); '$(GO)' was not found" >&2; exit 1; }
	@$(GO) list -m >/dev/null || { echo "Go 1.26 or newer is needed (https://go.dev/dl); this is $$(GOTOOLCHAIN=local GOFLAGS= $(GO) env GOVERSION)" >&2; exit 1; }

.PHONY: python-check
python-check:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.10 or newer is needed; '$(PYTHON)' was not found (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; $$($(PYTHON) --version 2>&1) is too old (make PYTHON=/path/to/python3)" >&2; exit 1; }

.PHONY: cc-check
cc-check:
	@command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null || { echo "the race detector needs a C compiler (gcc or clang, in CC or on the path)" >&2; exit 1; }

$(LINT): tools/go.mod tools/go.sum | go-check
	@echo "building golangci-lint (some minutes, once)"
	@mkdir -p $(@D)
	@$(STAGE) install-golangci-lint env CGO_ENABLED=0 $(GO) -C tools build -trimpath -ldflags '-s -w' -o ../$@ tool

$(VULNCHECK): tools/vuln/go.mod tools/vuln/go.sum | go-check
	@mkdir -p $(@D)
	@$(STAGE) install-govulncheck env CGO_ENABLED=0 $(GO) -C tools/vuln build -trimpath -o ../../$@ golang.org/x/vuln/cmd/govulncheck

$(VENV)/.python: | python-check
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is needed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp for each lock file; nothing is installed whose hash is not in it. uv
# does it, as pip takes nine times as long for the 3 GB that torch brings; pip
# does where uv cannot, as it does not know pip's settings for an index or a proxy.
INSTALL = @$(STAGE) install-$(@F:.%=%) sh -c '$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes -r "$$1" || \
  $(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r "$$1"' install

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

$(VENV)/.helm: $(VENV)/.test $(REQ)/helm.txt
	$(INSTALL) $(REQ)/helm.txt
	@touch $@

# Apart from the tests' packages, because nothing else needs it.
build/dali/.installed: $(VENV)/.test $(REQ)/dali.txt
	@rm -rf build/dali
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --target build/dali -r $(REQ)/dali.txt
	@touch $@

# dlio.txt is all there is to install; dlio.overrides says what DLIO asks for and is not in it.
build/dlio/.installed: $(VENV)/.test $(REQ)/dlio.txt
	@rm -rf build/dlio
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --no-deps --target build/dlio -r $(REQ)/dlio.txt
	@touch $@

build/frameworks/.installed: $(VENV)/.test $(REQ)/frameworks.txt
	@rm -rf build/frameworks
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --target build/frameworks -r $(REQ)/frameworks.txt
	@touch $@

build/formats/.installed: $(VENV)/.test $(REQ)/formats.txt
	@rm -rf build/formats
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --no-deps --target build/formats -r $(REQ)/formats.txt
	@touch $@

build/mosaicml/.installed: $(VENV)/.test $(REQ)/mosaicml.txt
	@rm -rf build/mosaicml
	$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes --no-deps --target build/mosaicml -r $(REQ)/mosaicml.txt
	@touch $@

# The package is used as its users have it: built as a wheel, and installed from
# that. Its dependencies are in test.txt; hatchling builds it without a network.
$(VENV)/.package: $(VENV)/.test python/pyproject.toml python/README.md python/LICENSE python/hatch_build.py $(shell find python/src -name '*.py' -o -name '*.jpg' -o -name py.typed)
	@rm -rf build/wheel
	$(PY) -m build --wheel --no-isolation --outdir build/wheel python >build/wheel.log || { cat build/wheel.log; exit 1; }
	$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-index --reinstall build/wheel/bowstring-*.whl
	@touch $@

.PHONY: wheel
wheel: $(VENV)/.package ## Build the Python package in build/wheel, and install it into .venv.

# A wheel for each processor, with the program in it. The program is static, and the same bytes wherever it is built.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' python/pyproject.toml)
# Releases are built with the toolchain that go.mod names, whichever is installed.
TOOLCHAIN = $(shell sed -n 's/^toolchain //p' go.mod)
RELEASE = env CGO_ENABLED=0 GOOS=linux GOTOOLCHAIN=$(TOOLCHAIN) $(GO) build -trimpath -ldflags '-s -w -buildid= -X bowstring/cmd/bowstring/command.version=$(VERSION)'

.PHONY: wheels
wheels: $(VENV)/.test go-check ## Build wheels with the program in them, for x86-64 and arm64, in build/wheels.
	@rm -rf build/wheels
	@for arch in amd64:x86_64 arm64:aarch64; do $(MAKE) --no-print-directory wheel-for GOARCH=$${arch%:*} MACHINE=$${arch#*:} || exit 1; done

.PHONY: wheel-for
wheel-for:
	@GOARCH=$(GOARCH) $(RELEASE) -o build/release/$(GOARCH)/bowstring ./cmd/bowstring
	@BOWSTRING_WHEEL_PROGRAM=$(CURDIR)/build/release/$(GOARCH)/bowstring \
	  BOWSTRING_WHEEL_PLATFORM=manylinux_2_17_$(MACHINE).manylinux2014_$(MACHINE).musllinux_1_1_$(MACHINE) \
	  $(PY) -m build --wheel --no-isolation --outdir build/wheels python >build/wheels.log || { cat build/wheels.log; exit 1; }

.PHONY: image
image: go-check ## Build the container image for x86-64 and arm64 in build/image, an OCI image layout; no daemon is needed.
	@rm -rf build/image
	@for arch in amd64 arm64; do GOARCH=$$arch $(RELEASE) -o build/release/$$arch/bowstring ./cmd/bowstring || exit 1; done
	@$(GO) -C deploy/image run . --out $(CURDIR)/build/image --version $(VERSION) \
	  amd64=$(CURDIR)/build/release/amd64/bowstring arm64=$(CURDIR)/build/release/arm64/bowstring

.PHONY: sbom
sbom: wheels image ## Write bills of materials (CycloneDX) of the programs, the wheels and the image in build/sbom.
	@rm -rf build/sbom
	@$(GO) -C deploy/sbom run . --out $(CURDIR)/build/sbom --version $(VERSION) \
	  $(CURDIR)/build/release/amd64/bowstring $(CURDIR)/build/release/arm64/bowstring $(CURDIR)/build/image $(CURDIR)/build/wheels/*.whl

# The version that the command line gives is compared with those of the tree, which the artifacts have.
KEY ?=
.PHONY: release
release: $(VENV)/.docs go-check ## All of a release, in build/release/VERSION: make release VERSION=x.y.z KEY=FILE; KEY signs the checksums.
	@$(PY) tools/release/release.py check '$(VERSION)' '$(KEY)'
	@rm -rf build/client
	@$(PY) -m build --no-isolation --outdir build/client python >build/client.log || { cat build/client.log; exit 1; }
	@$(MAKE) --no-print-directory sbom
	@$(GO) -C deploy/sbom run . --out $(CURDIR)/build/sbom --version $(VERSION) $(CURDIR)/build/client/*.whl
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(MAKE) --no-print-directory site
	@$(PY) tools/release/release.py make '$(VERSION)' '$(KEY)'

.PHONY: lock
lock: $(VENV)/.uv ## Resolve python/requirements/*.in again, with hashes.
	cd $(REQ) && for set in uv demo test lint docs helm dali frameworks; do \
	  ../../$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes $$set.in -o $$set.txt || exit 1; \
	done
	cd $(REQ) && ../../$(VENV)/bin/uv pip compile --quiet --upgrade --no-deps --universal --python-version 3.10 \
	  --generate-hashes mosaicml.in -o mosaicml.txt
	cd $(REQ) && ../../$(VENV)/bin/uv pip compile --quiet --upgrade --no-deps --universal --python-version 3.10 \
	  --generate-hashes formats.in -o formats.txt
	cd $(REQ) && ../../$(VENV)/bin/uv pip compile --quiet --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
	  --override dlio.overrides --generate-hashes dlio.in -o dlio.txt
	cd $(REQ) && ../../$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes ../pyproject.toml --extra polars pythons.in -o pythons.txt
	cd $(REQ) && ../../$(VENV)/bin/uv pip compile --quiet --upgrade --resolution lowest-direct --only-binary :all: --python-version 3.10 --generate-hashes ../pyproject.toml --extra polars lowest.in -o lowest.txt
