# Commands for users and contributors. Each target first installs its requirements (scripts/setup.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-switch byteps test test-switch test-slow test-all model-check mutation-check soak lint sizes format bench bench-gpu evaluate evaluate-quick docs clean

JOBS ?= $(shell nproc)
PRESETS ?= asan-ubsan tsan aarch64
BIN := .venv/bin
# Tests wait for processes and deadlines a third of their time: half as many processes again as cores. Files stay whole, for
# the fixtures of their modules, and start in the order of tests/conftest.py.
PYTEST = $(BIN)/pytest -n $$(($(JOBS) + ($(JOBS) + 1) / 2)) --dist loadfile --no-loadscope-reorder $(DURATIONS)
DURATIONS := $(if $(CI),--durations=50)
BUILD_BYTEPS := nice $(BIN)/python scripts/byteps/build.py
WITHOUT_BYTEPS := echo "make: BytePS was not built; tests that need it are skipped" >&2
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CTEST_OUTPUT_ON_FAILURE := 1

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12
	@echo
	@echo "Options of the demo: make demo ARGS='--schemes fp32,uniform-thc --link-mbit 1000' (see $(BIN)/thc demo --help)"

setup: ## install dependencies and the project into .venv
	@scripts/setup.sh demo

demo: setup ## loss by seconds and bytes of a small GPT: fp32, bf16, THC by thc-ps, THC among ranks; links of 100 Mb/s if root; 3 minutes
	@$(BIN)/thc demo $(ARGS)

demo-switch: ## the demo with a P4 program as the aggregator, in network namespaces (root); about three minutes
	@scripts/setup.sh demo-switch
	@$(BIN)/thc demo-switch $(ARGS)

byteps: ## build BytePS with THC's compressor into .venv; about four minutes the first time
	@scripts/setup.sh byteps
	@$(BUILD_BYTEPS)

test: ## C++ and Python tests; seven minutes on two idle cores, once built
	@scripts/setup.sh test
	@scripts/cpp_tests.sh release $(JOBS)
	@$(PYTEST) -m "not slow" $(ARGS)

test-switch: ## all packet tests on bmv2 (root; simple_switch, simple_switch_CLI and p4c-bm2-ss on PATH)
	@scripts/setup.sh test
	@$(PYTEST) tests/p4 --aggregator bmv2 $(ARGS)

test-slow: ## the Python tests that make test skips: slow ones, and those with BytePS where it can be built
	@scripts/setup.sh all
	@$(BUILD_BYTEPS) || $(WITHOUT_BYTEPS)
	@$(PYTEST) --byteps -m "slow or byteps" $(ARGS)

test-all: test test-slow ## test, test-slow, sanitizers, aarch64 under QEMU and a minute of fuzzing
	@for preset in $(PRESETS); do scripts/cpp_tests.sh $$preset $(JOBS); done
	@scripts/fuzz.sh

model-check: ## explore the model of the protocol with spin (tests/model); a few minutes
	@scripts/setup.sh model-check
	@nice $(BIN)/python tests/model/check.py $(ARGS)

mutation-check: ## see that the tests find small faults, one at a time; half an hour (ARGS='-k engine/' for a part)
	@scripts/setup.sh test
	@nice $(BIN)/python tests/mutation/check.py $(ARGS)

FUZZ_SECONDS ?= 10800
soak: ## three hours of fuzzed packets (FUZZ_SECONDS), then an hour of faults on a live job (ARGS='--minutes 5')
	@scripts/setup.sh all
	@nice scripts/fuzz.sh $(FUZZ_SECONDS)
	@nice $(BIN)/python lab/thc_lab/soak/soak.py $(ARGS)

lint: ## all static checks, without network
	@scripts/setup.sh all
	@$(BIN)/pre-commit run --all-files --show-diff-on-failure

sizes: ## lower the limits of lines and settings to the tree's
	@scripts/setup.sh all
	@$(BIN)/python evaluation/sizes.py --write

format: ## rewrite sources in the project's style
	@scripts/setup.sh all
	@scripts/lint.sh format

bench: ## benchmarks; writes evaluation/benchmarks.md
	@scripts/setup.sh all
	@$(BIN)/python evaluation/bench.py $(ARGS)

bench-gpu: ## on a GPU, ten minutes: bits, then all costs; writes evaluation/benchmarks.md
	@scripts/setup.sh all
	@$(BIN)/python evaluation/bench.py gpu

evaluate: ## claims without a result, all: five hours; writes evaluation/claims.md (ARGS="scale" for one again)
	@scripts/setup.sh all
	@$(BIN)/python evaluation/evaluate.py $(ARGS)

evaluate-quick: ## the same on less data, ten minutes; writes into build/evaluation
	@scripts/setup.sh all
	@$(BIN)/python evaluation/evaluate.py --quick $(ARGS)

docs: ## guide and API reference as a site, with a search, into build/docs; checks links (ARGS=--external: to other sites)
	@scripts/setup.sh all
	@$(BIN)/python scripts/docs/make_site.py $(ARGS)

clean: ## remove build outputs and .venv
	@rm -rf byteps_thc/_native/*.so build .venv demo-out demo-switch-out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
