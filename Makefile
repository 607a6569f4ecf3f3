# The only entry points: people and CI call the same ones.
#   make demo    a first answer from a real model
#   make test    all tests, those on real weights included
#   make check   style and types
#   make fuzz    coverage-guided fuzzing of the parser for FUZZ_SECONDS (60)
#   make bench   what the runtime, prefix reuse, parsing, messages and the agent loop cost
#   make clean   remove the environment; models stay where they are

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
FUZZ_SECONDS ?= 60
.PHONY: help setup dev weights demo test test-long check format fuzz bench clean

# No vision, no tools, no server: a third less to compile. An environment's own CMAKE_ARGS come last and win.
export CMAKE_ARGS := -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF $(CMAKE_ARGS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n 's/^# \{0,1\}//; 1,8p' Makefile

setup: $(VENV)/.runtime
dev: $(VENV)/.dev

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "localagent needs Python 3.11 to 3.13; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.runtime: pyproject.toml | $(VENV)/.pip
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || { \
		for tool in cc c++ cmake; do command -v $$tool >/dev/null || \
			{ echo "llama.cpp is built from source and needs $$tool: install it and try again" >&2; exit 1; }; done; \
		echo "==> installing localagent and llama.cpp: the first time llama.cpp is compiled, which takes 5 to 10"; \
		echo "    minutes on two cores without a sign of life; later installs reuse the wheel"; }
	@$(BIN)/pip install --quiet --editable '.[llamacpp]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "==> installing the tools for tests and checks"
	@$(BIN)/pip install --quiet --group dev
	@touch $@

weights: setup
	@$(BIN)/localagent models pull >/dev/null

demo: weights
	@echo '==> localagent run "Name three colours."'
	@$(BIN)/localagent run "Name three colours." --stats

test: dev weights
	@echo "==> all tests"
	@$(BIN)/python -m pytest

test-long: dev weights
	@echo "==> the properties with thirty times as many examples: an hour or so"
	@HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest

check: dev
	@echo "==> style and types"
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: dev
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

fuzz: dev
	@$(BIN)/pip install --quiet --group fuzz
	@$(BIN)/python -m tests.parsers.fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=300 -print_final_stats=1

bench: dev weights
	@$(BIN)/python benchmarks/host_overhead.py nano --chat --threads 1
	@$(BIN)/python benchmarks/host_overhead.py nano-mlx --tokens 1000
	@$(BIN)/python benchmarks/host_overhead.py smollm2 --tokens 300 --threads 1
	@$(BIN)/python benchmarks/prefix_reuse.py nano --threads 1
	@$(BIN)/python benchmarks/prefix_reuse.py nano-mlx
	@$(BIN)/python benchmarks/prefix_reuse.py smollm2 --threads 1
	@$(BIN)/python benchmarks/exactness.py --calls 20
	@$(BIN)/python benchmarks/parse_throughput.py
	@$(BIN)/python benchmarks/messages.py
	@$(BIN)/python benchmarks/agent_loop.py

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
