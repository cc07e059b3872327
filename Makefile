# Everything a newcomer needs: Python >= 3.11, cargo and make. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV) $(BIN)/uv
STAMP := .make
# `make soak`: seconds of mutated frames of each kind for the decoders, and seeds of random faults for the hosts.
FUZZ_SECONDS ?= 600
SIM_SEEDS ?= 10000
RUST := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: help demo test check bench soak mutants proto fmt docs clean
.PHONY: check-format check-lint check-types check-proto test-rust test-python

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

demo: $(STAMP)/extension ## set up and answer a two-hop question with a team of agents
	@$(BIN)/pandacore demo

test: test-rust test-python ## set up and run all tests
	@$(BIN)/python scripts/count_tests.py $(STAMP)/rust-tests.log $(STAMP)/pytest.xml

check: check-format check-lint check-types check-proto test ## what CI runs: format, lint, types, protos, tests

bench: $(STAMP)/dev ## run every benchmark against its peers (release build, 10^6 agents)
	@for name in $$($(BIN)/python -c 'from pandacore.bench import BENCHES; print(*BENCHES)'); \
	do $(BIN)/pandacore bench $$name --agents 1000000 --json; done

soak: $(STAMP)/dev ## the long tests: minutes, not part of `make test`
	@PANDACORE_FUZZ_SECONDS=$(FUZZ_SECONDS) PANDACORE_SIM_SEEDS=$(SIM_SEEDS) PANDACORE_SIM_LARGE=1 \
	  cargo test --release --locked -q -p pandacore-gossip --test fuzz --test sim --test faults --test field_cases
	@$(BIN)/python -m pytest -m soak --override-ini 'addopts=-ra --import-mode=importlib -p pandacore.testing.fixtures'

mutants: $(STAMP)/dev ## plant each fault of the recovery code: the tests must notice every one
	@$(BIN)/python scripts/mutants.py

proto: $(STAMP)/dev ## regenerate the gRPC code from proto/
	@$(BIN)/python scripts/gen_proto.py

fmt: $(STAMP)/dev ## format all code
	@cargo fmt --all
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix-only .

docs: $(STAMP)/docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove everything that the other targets made
	rm -rf $(VENV) $(STAMP) target dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-format: $(STAMP)/dev
	cargo fmt --all --check
	$(BIN)/ruff format --check -q .

check-lint: $(STAMP)/dev
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff check -q .

check-types: $(STAMP)/dev
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --allowlist scripts/stubtest_allowlist.txt pandacore._core

check-proto: $(STAMP)/dev
	$(BIN)/python scripts/gen_proto.py --check

test-rust: | $(STAMP)
	@if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --workspace --locked --no-fail-fast 2>&1 | tee $(STAMP)/rust-tests.log; \
	     cargo test --workspace --locked --doc -q 2>&1 | tee -a $(STAMP)/rust-tests.log; \
	else cargo test --workspace --locked --no-fail-fast 2>&1 | tee $(STAMP)/rust-tests.log; fi

test-python: $(STAMP)/dev
	@$(BIN)/python -m pytest --junitxml=$(STAMP)/pytest.xml

$(STAMP):
	@mkdir -p $@

$(BIN)/uv: | $(STAMP)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'pandacore needs Python >= 3.11; set PYTHON=/path/to/python3.11' >&2; exit 1; }
	@cargo --version >/dev/null || { echo 'pandacore needs Rust (cargo); see https://rustup.rs' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.9,<1'

$(STAMP)/runtime: pyproject.toml uv.lock $(BIN)/uv
	$(UV) sync --quiet --locked --inexact --no-install-project --group build
	@touch $@

$(STAMP)/extension: $(STAMP)/runtime $(RUST)
	$(UV) pip install --quiet --no-deps --no-build-isolation --reinstall-package pandacore --editable .
	@touch $@

$(STAMP)/dev: $(STAMP)/extension
	$(UV) sync --quiet --locked --inexact --no-install-project --group dev --extra bench --extra viz
	@touch $@

$(STAMP)/docs: $(STAMP)/dev
	$(UV) sync --quiet --locked --inexact --no-install-project --group docs
	@touch $@
