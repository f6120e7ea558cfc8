# make sweep: set up, measure this machine, write a report.   make test: set up, run every check that CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without the bytecode of every file: an import makes it for those that are used, and keeps it, although some images of
# containers turn that off.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
# `make sweep` installs PyTorch and Triton only if the NVIDIA driver loads. Tests always need them: without a GPU, they
# run the kernels in Triton's interpreter.
DRIVER := $(shell $(PYTHON) -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null && echo cuda)
TOOLS := $(VENV)/.build-tools
STAMP := $(VENV)/.installed
RUNNING := $(or $(wildcard $(STAMP)),$(VENV)/.installed-to-run$(DRIVER:%=-%))
CPU_TORCH := https://download.pytorch.org/whl/cpu
# What an installation copies or compiles: not the Python files, and not the C++ tests, which build apart.
INSTALLED := pyproject.toml constraints.txt $(wildcard configs/*.toml configs/*/*.toml) \
    $(shell find csrc -path csrc/tests -prune -o -type f -print)
# What people read.
PROSE := README.md CONTRIBUTING.md CHANGELOG.md .github configs csrc kvbench $(wildcard docs)
CXX_SOURCES = $(shell find csrc -name '*.cpp' -o -name '*.hpp' -o -name '*.cu')
# One more than CPUs, as tests wait for the processes that they start; at most 4.
WORKERS = $(shell $(BIN)/python -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
RUN := runs/make-$(shell date -u +%Y%m%d-%H%M%S)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup sweep reports check-reports dist test checks lint types imports cxx-format sanitize sanitize-memory \
    sanitize-threads unit fuzz format clean

help: ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=python3.12 (to make $(VENV) with), ARGS='-a blocks=64' (more for make sweep)"

setup: $(RUNNING) ## Make .venv, install the dependencies (PyTorch and Triton only with an NVIDIA driver), build csrc

sweep: $(RUNNING) ## Measure this machine (configs/quick.toml) and write a report
	@status=0; $(BIN)/kvbench sweep --out $(RUN) $(ARGS) || status=$$?; \
	if [ -f $(RUN)/run.json ]; then \
	    $(BIN)/kvbench report $(RUN) || exit $$?; \
	fi; exit $$status

reports: $(RUNNING) ## Remake every committed report from the runs beside it; changes nothing where they agree
	@export LC_ALL=C; for runs in reports/*/runs; do \
	    echo "Making the report of $${runs%/runs} (about a minute) ..."; \
	    $(BIN)/kvbench report "$$runs"/* -o "$${runs%/runs}" || exit $$?; \
	done
	@$(BIN)/python -m reports.cards --write

check-reports: $(RUNNING) ## Check that every committed report is complete and follows from its runs
	@$(BIN)/python -m reports.cards

dist: $(RUNNING) ## Build an sdist and a wheel in dist/, check their contents, run the wheel in a clean environment
	$(INSTALL) build
	.ci/dist $(BIN)/python

CHECKS := lint types imports cxx-format sanitize-memory sanitize-threads unit
red = $(strip $(foreach check,$(CHECKS),$(shell [ -e build/green/$(check) ] || echo $(check))))

test: checks ## Every check that CI runs, also after one that is red; the last line names those
	$(if $(red),$(error red: $(red)))
	@echo "all checks passed"

# Two at a time, each command with its output in one piece: the C++ tests need the build tools alone, and so do not wait
# for the installation. The other tests have the machine to themselves.
checks: $(TOOLS)
	@rm -rf build/green && mkdir -p build/green
	@$(MAKE) --keep-going --jobs=2 --output-sync=line $(patsubst %,build/green/%,$(filter-out unit,$(CHECKS))) || true
	@$(MAKE) build/green/unit || true

$(patsubst %,build/green/%,$(filter-out sanitize-%,$(CHECKS))): $(STAMP)
build/green/%:
	@$(MAKE) $*
	@touch $@

lint: $(STAMP) ## ruff: rules and format; codespell, plain words, no clock in tests, the size of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE) tests
	$(BIN)/python -m tests.style
	$(BIN)/python -m tests.clocks
	$(BIN)/python -m tests.size

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP) ## The import rule
	$(BIN)/lint-imports --no-logo

cxx-format: $(STAMP) ## clang-format of csrc
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

sanitize: sanitize-memory sanitize-threads ## C++ tests under AddressSanitizer with UBSan, and under ThreadSanitizer

sanitize-memory: SANITIZERS := address,undefined
sanitize-threads: SANITIZERS := thread
sanitize-memory sanitize-threads: $(TOOLS)
	$(BIN)/cmake -S csrc -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DCMAKE_BUILD_TYPE=Debug -DKVBENCH_WERROR=ON -DKVBENCH_SANITIZE=$(SANITIZERS)
	MAKEFLAGS= $(BIN)/cmake --build build/$@
	$(BIN)/ctest --test-dir build/$@ --output-on-failure --no-tests=error --parallel 2

# Side by side, but for those that measure a GPU: they have the machine to themselves.
unit: $(STAMP) ## pytest; tests that need a GPU are skipped, and said so, where there is none
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal $(if $(DRIVER),--ignore=tests/gpu)
	$(if $(DRIVER),$(BIN)/python -m pytest tests/gpu)

.PHONY: docs
docs: $(STAMP) ## Write the generated parts of README and docs/ again
	$(BIN)/python -m tests.docs

fuzz: $(STAMP) ## 5 000 cases of hostile input, other ones every time; some minutes
	$(BIN)/python -m tests.fuzz --cases 5000

.PHONY: bench
bench: $(STAMP) ## The CPU time of show and report, beside that of import pandas, and on a GPU times that agree; minutes
	$(BIN)/python -m tests.bench_report
	$(if $(DRIVER),$(BIN)/python -m tests.bench_gpu)

.PHONY: mutants
mutants: $(STAMP) ## Put known faults into a copy and say which the tests find (ARGS=ring: some); minutes
	$(BIN)/python -m tests.mutants $(ARGS)

format: $(STAMP) ## Rewrite sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

clean: ## Remove what was built and installed (runs/ stays)
	rm -rf $(VENV) build dist kvbench/_engine.pyi kvbench/_commit.txt .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The build requirements come first and from the constraints too, so that no step takes an unpinned package; cmake and
# ninja are among them, so that none need be installed. Editable: one copy of the Python files for every tool, and
# the stub of the compiled module beside them. Warnings of the compiler are errors here, not in a user's installation.
first = @[ -e $@ ] || echo
or_compiling = @[ -e $@ ] && echo "Compiling the engine ..." || echo
$(TOOLS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "kvbench needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v $${CXX:-c++} g++ clang++ >/dev/null || \
	    { echo "kvbench needs a C++20 compiler (Debian and Ubuntu: apt install g++)" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || \
	    { echo "$(PYTHON) cannot make a virtual environment (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(first) "Installing the build tools (about 30 MB) ..."
	@$(INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

BUILD := $(INSTALL) --no-build-isolation \
    --config-settings=cmake.define.KVBENCH_WERROR=ON --editable

$(VENV)/.installed-to-run: $(TOOLS) $(INSTALLED)
	$(or_compiling) "Installing the dependencies (about 60 MB), then compiling the engine ..."
	@$(BUILD) .
	@touch $@

$(VENV)/.installed-to-run-cuda: $(TOOLS) $(INSTALLED)
	$(or_compiling) "Installing PyTorch, Triton and the other dependencies (about 2.9 GB), then compiling the engine ..."
	@$(BUILD) '.[cuda]'
	@touch $@

# Without a driver, the CPU build of PyTorch is enough. If its index is not reachable, the next step installs the CUDA
# build.
$(STAMP): $(TOOLS) $(INSTALLED)
ifeq ($(DRIVER),)
	$(first) "Installing PyTorch for the CPU (about 200 MB) ..."
	@$(INSTALL) --retries 0 --no-deps --index-url $(CPU_TORCH) torch 2>/dev/null || \
	    echo "$(CPU_TORCH) is not reachable: installing the CUDA build instead (about 2.4 GB)"
endif
	$(or_compiling) "Installing Triton and the test tools (about $(if $(DRIVER),3 GB,600 MB)), then compiling the engine ..."
	@$(BUILD) '.[cuda,dev]'
	@touch $@
