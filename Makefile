# Works from a fresh clone: every target that needs the environment makes it first, in .venv.

PYTHON ?= python3
TORCH  ?= torch==2.13.0

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.installed-tools
PIP   := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-torch sanitize fuzz validity bench bench-exact bench-gaussian bench-mcmc docs fmt clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(TOOLS) ## create .venv with everything that development needs

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Native code is compiled first, for its lines to be seen: pip hides them.
$(STAMP): pyproject.toml setup.py $(wildcard energyml/native/*/*.h energyml/native/*/*.cpp) | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || \
	  $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off '$(TORCH)'
	@$(PIP) install 'setuptools>=77'
	@echo "compiling native code"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@echo "installing energyml"
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

$(TOOLS): $(STAMP)
	@echo "installing the development tools"
	@$(PIP) install --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## run the demonstration
	@$(BIN)/energyml demo

test: $(TOOLS) ## lint, format check, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-torch: $(TOOLS) ## the tests with the native kernels set aside, as where none are built
	ENERGYML_NATIVE=0 $(BIN)/python -m pytest -n 2 --dist worksteal

# Native code in a copy of the tree, compiled for the best instruction set of the machine.
SANITIZED := tests/native tests/mcmc/test_native.py tests/beam/test_walks.py
sanitize: $(TOOLS) ## the native tests with the address and undefined-behaviour sanitizers
	mkdir -p build/sanitize && cp -rP energyml backends grammar tests setup.py pyproject.toml LICENSE README.md build/sanitize
	rm -f build/sanitize/energyml/native/*.so
	cd build/sanitize && ENERGYML_SANITIZE=1 $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace
	cd build/sanitize && LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. $(CURDIR)/$(BIN)/python -m pytest $(SANITIZED) -n 2

FUZZ ?= 20000

fuzz: $(TOOLS) ## the fuzz tests with many cases, on each instruction set; FUZZ=2000 for fewer
	ENERGYML_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz -n 2
	for set in v3 plain 0; do \
	  ENERGYML_NATIVE=$$set ENERGYML_FUZZ=$(FUZZ) ENERGYML_FUZZ_USING=exact \
	    $(BIN)/python -m pytest tests/fuzz/test_fuzz_answers.py -n 2 || exit 1; \
	done

validity: $(TOOLS) ## the samplers' long tests: a hundred times the draws
	ENERGYML_VALIDITY=1 $(BIN)/python -m pytest tests/mcmc -n 2

bench: $(TOOLS) ## the benchmarks
	$(BIN)/python -m benchmarks.foundation

# The libraries that exact inference is measured against, in an environment of their own.
PEERS       := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
PEERS_PIP   := $(PEERS)/bin/python -m pip --quiet --quiet --disable-pip-version-check
SYNJAX      ?= git+https://github.com/google-deepmind/synjax@6de574af85658c1e5608739b958ab20f06050a1b
BENCH       ?= all

$(PEERS): $(PEERS_STAMP)

$(PEERS_STAMP): benchmarks/exact/peers.txt pyproject.toml setup.py
	@echo "installing the peers into $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS_PIP) install '$(TORCH)' 'setuptools>=77'
	@$(PEERS_PIP) install --editable . --no-build-isolation
	@$(PEERS_PIP) install --requirement benchmarks/exact/peers.txt
	@$(PEERS_PIP) install --no-deps '$(SYNJAX)' || echo "synjax is left out: $(SYNJAX) cannot be installed"
	@touch $@

bench-exact: $(PEERS_STAMP) ## exact inference against its peers; BENCH='chains --quick' for a part
	@kept=0; $(PEERS)/bin/python -m benchmarks.exact.run $(BENCH) || kept=1; \
	$(PEERS)/bin/python -m benchmarks.exact.run report && exit $$kept

FIELDS_STAMP := $(PEERS)/.installed-fields

$(FIELDS_STAMP): $(PEERS_STAMP) benchmarks/gaussian/peers.txt
	@$(PEERS_PIP) install --requirement benchmarks/gaussian/peers.txt
	@touch $@

bench-gaussian: $(FIELDS_STAMP) ## Gaussian fields against their peers; BENCH='grids --quick' for a part
	@kept=0; $(PEERS)/bin/python -m benchmarks.gaussian.run $(BENCH) || kept=1; \
	$(PEERS)/bin/python -m benchmarks.gaussian.run report && exit $$kept

SAMPLERS_STAMP := $(PEERS)/.installed-samplers

$(SAMPLERS_STAMP): $(PEERS_STAMP) benchmarks/mcmc/peers.txt
	@$(PEERS_PIP) install --requirement benchmarks/mcmc/peers.txt
	@$(PEERS_PIP) install --no-deps pgmax==0.6.1 || echo "pgmax is left out: it cannot be installed"
	@touch $@

bench-mcmc: $(SAMPLERS_STAMP) ## samplers against their peers; BENCH='speed --quick' for a part
	@kept=0; $(PEERS)/bin/python -m benchmarks.mcmc.run $(BENCH) || kept=1; \
	$(PEERS)/bin/python -m benchmarks.mcmc.run report && exit $$kept

docs: $(TOOLS) ## regenerate the generated parts of docs/
	$(BIN)/python -m energyml.docgen

fmt: $(TOOLS) ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove what builds and tools leave behind (keeps .venv)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov
	find energyml grammar backends tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
