# The commands of this project. Each prepares what it needs; the second time that takes a second.
.DEFAULT_GOAL := help
# TORCH=2.15 works with that release of torch, in .venv-2.15 and build-2.15, beside the one of .venv.
export TORCH
VENV := .venv$(TORCH:%=-%)
PYTHON := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help bootstrap build wheel demo test zoo mutants fuzz soak generate lint check sanitize format bench gpu-bundle clean distclean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bootstrap: ## create .venv and look for what the system must provide
	@scripts/bootstrap

build: bootstrap ## build the library, the runner and the tests into build/, install the Python package into .venv
	@scripts/build

wheel: bootstrap ## build the wheel of the Python package into dist/
	@scripts/wheel

demo: build ## export a transformer, run it at five budgets, compared with eager PyTorch; then an LLM that generates text
	@$(PYTHON) scripts/demo.py

test: bootstrap ## build, then run all tests: Rust, C++, Python (TORCH=2.15: with another torch, in an environment of its own)
	@scripts/run_tests

zoo: build ## export models of transformers, timm, torchvision and diffusers, some quantized, run each at three budgets, write docs/models.md (ONLY=name JOBS=n ARGS=--help)
	@$(PYTHON) scripts/zoo $(if $(ONLY),--only '$(ONLY)') $(if $(JOBS),--jobs $(JOBS)) $(ARGS)
	@$(if $(ONLY),,cd python/tests && WEIGHTSTREAM_TEST_FAMILIES=all $(abspath $(PYTHON)) -m pytest -q test_llm.py)

mutants: bootstrap ## take each safety rule out, one at a time, and see a test fail (ONLY=name)
	@$(PYTHON) scripts/mutants $(if $(ONLY),--only '$(ONLY)')

fuzz: bootstrap ## fuzz guided by coverage (TARGET=pte TIME=60 seconds each), or RUNS=10000000 executions of each parser; TARGET=programs RUNS=150
	@scripts/fuzz $(if $(RUNS),many,guided) $(or $(TARGET),all) $(or $(RUNS),$(TIME),60)

SOAK_MODELS := mlp demo kv_decoder fact_long_lease
soak: bootstrap ## play CASES=100000 random cases of each property; then load, run and destroy models from four threads for MINUTES=30
	@PROPTEST_CASES=$(or $(CASES),100000) cargo nextest run --no-fail-fast --test session --test elastic --test policies
	@$(PYTHON) python/tests/exports.py --into build/test-models $(SOAK_MODELS)
# Copies: what is in build/test-models follows the sources, and sources may change while this runs.
	@mkdir -p build/soak-models
	@cp -L $(foreach model,$(SOAK_MODELS),build/test-models/$(model).pte build/test-models/$(model).ptd) build/soak-models/
	@cargo run --release --quiet --example soak -- --minutes $(or $(MINUTES),30) build/soak-models $(SOAK_MODELS)

generate: bootstrap ## write docs/options.md, docs/counters.md, shims.txt and the lists of weightstream.h from their tables
	@scripts/generate

lint: bootstrap ## formatting, lints and documentation, warnings are errors
	@scripts/check

check: lint sanitize ## lint, then sanitize: four minutes

sanitize: build ## the C++ tests under the sanitizers and under valgrind
	@scripts/sanitize

format: bootstrap ## rewrite all sources in the project's format
	@scripts/check --fix

bench: bootstrap ## measure the cost of a probe, and how fast weights are packed
	cargo bench

gpu-bundle: bootstrap ## make gpu-bundle/: the GPU tests and benches for a machine with an NVIDIA GPU (WHEELS=folder adds wheels, EXPORTER=python programs)
	@scripts/gpu_bundle $(if $(WHEELS),--wheels $(WHEELS)) $(if $(EXPORTER),--exporter $(EXPORTER)) $(if $(PROGRAMS),--programs $(PROGRAMS))

clean: ## remove everything built, but not .venv
	cargo clean
	rm -rf build build-* dist .demo gpu-bundle

distclean: clean ## remove .venv too
	rm -rf .venv .venv-*
