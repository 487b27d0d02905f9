# Everything a developer types. Each target sets up what it needs, and does nothing twice.
PYTHON ?= python3
PROFILE ?= dgx-h100
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' hami_plugin/__init__.py)
IMAGE ?= hami-plugin:$(VERSION)
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
SOURCES := cdi hami_plugin vendors tests bench tools
PROTOS := $(shell find proto -name '*.proto')
GENERATED := hami_plugin/kubelet
# Tests wait for processes more than half of their time.
PYTEST = $(BIN)/python -m pytest --numprocesses $(or $(WORKERS),$(shell echo $$((3 * $$(nproc))))) \
	--maxprocesses 8 --dist worksteal
PIN = CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-all demo-picture pictures test test-all agreement test-runtimes fuzz e2e quick mutants check checks format-check lint types contracts drift format proto lock manifests bench soak gpu-check wheel image clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Build .venv with everything that the other targets need

# What a run needs: enough for the demonstration, and the first part of everything else.
$(RUNTIME): requirements.lock requirements-build.lock pyproject.toml hami_plugin/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) tools/runtime.py --venv $(VENV) install
	@touch $@

$(STAMP): $(RUNTIME) requirements-dev.lock
	@echo "== downloading and installing what tests and checks need as well (requirements-dev.lock)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	@touch $@

demo: $(RUNTIME) ## See a simulated node register, allocate, lose a GPU, heal, and survive a kubelet restart (PROFILE=..., DRA=1: by ResourceClaims)
	@$(PYTHON) tools/runtime.py --venv $(VENV) run demo --profile $(PROFILE) $(if $(DRA),--dra) $(DEMO)

demo-all: $(RUNTIME) ## The same on every machine that can be simulated, of every vendor, as a table
	@$(BIN)/hami-plugin demo --all

demo-picture: $(RUNTIME) ## Draw docs/demo.svg, the picture in the README, anew from a run of the demonstration
	@$(BIN)/python tools/demo_picture.py docs/demo.svg

pictures: setup ## Take docs/status-*.png, the pictures of the status pages, anew in a real browser (150 MB to download)
	REQUIRE_ALL=1 STATUS_PICTURES=$(CURDIR)/docs $(BIN)/python -m pytest -q tests/runtimes/test_status_page.py

test: setup ## Run every test with a part of its cases, in parallel (REQUIRE_ALL=1: never skip; WORKERS=)
	$(PYTEST)

test-all: setup ## Run every test with all of its cases: all recorded questions, machines, lives, examples
	TEST_ALL=1 $(PYTEST)

agreement: setup ## Ask fit, the scheduler and the daemon the same 6400 questions on all machines (QUESTIONS=, SEED=)
	TEST_ALL=1 AGREEMENT_QUESTIONS=$${QUESTIONS:-6400} AGREEMENT_SEED=$${SEED:-0} $(BIN)/python -m pytest -q tests/vendors/test_agreement.py

test-runtimes: setup ## As root: what CDI specs, answers, the image and the rules do in real programs (REQUIRE_ALL=1: never skip)
	@$(BIN)/python -m tests.runtimes.install
	$(BIN)/python -m pytest tests/runtimes --durations=5

FUZZ_STAMP := $(VENV)/.fuzz

$(FUZZ_STAMP): $(STAMP) requirements-fuzz.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-fuzz.lock
	@touch $@

fuzz: $(FUZZ_STAMP) ## Fuzz every parser of text from outside, guided by coverage (FUZZ_SECONDS=20 for each, TARGETS=..., FUZZ_KEEP=1)
	$(BIN)/python -m tests.fuzz.run $(TARGETS)

.PHONY: coverage docs commits

coverage: setup ## How much of the code the tests run, in per cent, daemons of their own included (TESTS="tests/allocation ...")
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -q $(TESTS)
	@$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage html --quiet
	@echo "$$($(BIN)/python -m coverage report --format=total) % of statements and branches; line by line: build/coverage/html/index.html"

DOCS_STAMP := $(VENV)/.docs

$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-docs.lock
	@touch $@

docs: $(DOCS_STAMP) ## Build the documentation as a site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Built: build/site/index.html"

commits: setup ## Check the subjects of the commits since BASE was left (BASE=main)
	@$(BIN)/python tools/commits.py $(or $(BASE),main)

e2e: setup ## As root: a pod's whole life on a real node (KUBERNETES=1.34, 1.34-gates or 1.20: not the newest; REQUIRE_ALL=1: never skip)
	@$(BIN)/python -m tests.realnode.install
	$(BIN)/python -m pytest tests/realnode

quick: setup format-check lint types ## Under a minute: format, lint, types, and the tests of what has changed since main
	$(BIN)/python -m tests.support.quick

mutants: setup ## Change the code in one place after the other, and see which run of the tests notices it
	$(BIN)/python -m tests.mutants

check: checks test ## What must hold at each commit: format, lint, types, import contracts, generated code, tests

checks: setup format-check lint types contracts drift ## The same without the tests

format-check:
	$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "Run: make format"; exit 1; }

lint:
	$(BIN)/ruff check --quiet $(SOURCES)

types:
	$(BIN)/mypy

contracts:
	$(BIN)/lint-imports

drift: ## Fail when generated code is not what the .proto files say
	@tmp=$$(mktemp -d) && trap 'rm -rf $$tmp' EXIT && \
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=$$tmp --pyi_out=$$tmp --grpc_python_out=$$tmp $(PROTOS) && \
	(cd $$tmp && find . -type f) | while read -r file; do \
		cmp -s "$$tmp/$$file" "$$file" || { echo "$$file differs from the .proto files; run: make proto"; exit 1; }; done

format: setup ## Format the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix --quiet $(SOURCES)

proto: setup ## Generate the gRPC code anew
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

lock: ## Pin anew what is installed, with hashes, from pyproject.toml; newest versions: make lock UPGRADE=--upgrade
	@test -x build/lock/bin/pip-compile || { $(PYTHON) -m venv build/lock && \
		build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2; }
	$(PIN) --output-file requirements.lock pyproject.toml
	$(PIN) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	$(PIN) --extra fuzz --constraint requirements-dev.lock --output-file requirements-fuzz.lock pyproject.toml
	$(PIN) --extra docs --constraint requirements-dev.lock --output-file requirements-docs.lock pyproject.toml
	$(PIN) --only-build-deps --build-deps-for wheel --constraint requirements-dev.lock \
		--output-file requirements-build.lock pyproject.toml

manifests: setup ## Make daemonset.yaml, and what the chart takes from the code, anew
	@$(BIN)/python -m tests.charts.made

bench: setup ## Measure speed and memory against a baseline in the same run (BENCH=--quick: about a minute)
	$(BIN)/python -m bench $(BENCH)

soak: setup ## Ten minutes of pods, faults and restarts at most: 100,000 Allocates, and nothing may grow (SOAK="--minutes 60")
	$(BIN)/python -m bench.soak $(SOAK)

gpu-check: $(RUNTIME) ## On a machine with a real NVIDIA GPU: compare it with what the simulation claims (read-only; MUTATE=1 makes MIG instances on an idle card)
	@$(BIN)/python -m tools.gpu_check --report $${OUT:-.}/gpu-check.json $(if $(MUTATE),--mutate)

wheel: setup ## Build the wheel
	$(BIN)/python -m hatchling build -t wheel

image: setup ## Build the container image on Debian's packages, no registry asked (IMAGE=, BASE=, BASE_PYTHON=, BUILDER=, REFRESH=1)
	@$(BIN)/python -m tools.image --name $(IMAGE) $(if $(BASE),--base $(BASE)) $(if $(BASE_PYTHON),--python $(BASE_PYTHON)) \
		$(if $(BUILDER),--builder $(BUILDER)) $(if $(REFRESH),--anew)

clean: ## Remove what make has made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
