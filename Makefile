# The only entry points: people and CI call the same ones.
#   make demo          a first answer from a real model
#   make test-fast     tests for daily work: one engine, few examples, a minute and a half; says what it leaves out
#   make test          all tests, those on real weights included
#   make test-core     tests that need no engine, in an environment without one; TESTS=... picks some
#   make test-parsers  tests of the parsers, where localagent cannot be imported
#   make clients       install the clients that tests/server/acceptance runs, for make test to find
#   make serve-demo    the server on lfm2-nano, and one request by each official client
#   make test-long     all tests, with thirty times as many examples
#   make screens       write the screens that tests compare, and the pictures of the README, anew
#   make check         style and types; make format fixes style
#   make fuzz          random outputs in every dialect for FUZZ_SECONDS (60), or FUZZ_COUNT of them; GUIDED=1: by coverage
#   make mutants       do the tests notice COUNT (200) small faults? SEED draws them, in paths that begin with ONLY;
#                      with NOTES=FILE it goes on where it was ended; JOBS faults at once, each in a copy of its own
#   make llama-server  compile it from the source of the installed llama-cpp-python, for benchmarks to compare with
#   make bench         the cost of the runtime, prefix reuse, parsing, messages, the agent loop and serving
#   make clean         remove the environment; models stay where they are

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
.DEFAULT_GOAL := help
FUZZ_SECONDS ?= 60
SEED ?= 1
COUNT ?= 200
# Under `make -j`, two recipes would install into one environment at once.
.NOTPARALLEL:
.PHONY: help setup dev weights demo serve-demo clients test test-fast test-core test-parsers test-long mutants screens check format fuzz bench llama-server clean

# Options for pip's installs and for the build of llama.cpp, such as those that name an index of prebuilt wheels.
PIP_ARGS ?=
PLATFORM ?= $(shell uname -sm)
# What `make demo` runs on. MLX comes ready-made for Apple silicon; llama.cpp is compiled where it runs.
ENGINE ?= $(if $(filter Darwin,$(PLATFORM)),$(if $(filter arm64,$(PLATFORM)),mlx,llamacpp),llamacpp)
# Runs Python in a child process, and says which model, engine and processor it was when an engine kills it.
WATCHED := $(BIN)/python -m localagent.engines.children
# Tests of one file share what they load, so a file stays with one worker.
SPREAD = -n $(or $(JOBS),auto) --maxprocesses 4 --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

# Looks at the engine each time, which takes half a second: another processor may need another build.
setup: $(VENV)/.$(ENGINE)
	@$(if $(filter llamacpp,$(ENGINE)),$(BIN)/python -m localagent.engines.build $(PIP_ARGS))

# The tests run on both engines, wherever they run.
dev: setup $(VENV)/.dev

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "localagent needs Python 3.11 to 3.13; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.core: pyproject.toml | $(VENV)/.pip
	@echo "==> installing localagent"
	@$(BIN)/pip uninstall --quiet --yes localagent 2>/dev/null  # an earlier name, on the index somebody else's
	@$(BIN)/pip install --quiet $(PIP_ARGS) --editable .
	@touch $@

$(VENV)/.mlx: $(VENV)/.core
	@echo "==> installing MLX"
	@$(BIN)/pip install --quiet $(PIP_ARGS) --editable '.[mlx]'
	@touch $@

# llama.cpp first, compiled as this machine needs it; pip finds it there and installs the rest of the extra.
$(VENV)/.llamacpp: $(VENV)/.core
	@echo "==> installing llama.cpp"
	@$(BIN)/python -m localagent.engines.build $(PIP_ARGS)
	@$(BIN)/pip install --quiet $(PIP_ARGS) --editable '.[llamacpp]'
	@touch $@

$(VENV)/.dev: benchmarks/pyproject.toml $(VENV)/.$(ENGINE) $(VENV)/.llamacpp
	@echo "==> installing the tools for tests and checks"
	@$(BIN)/pip install --quiet $(PIP_ARGS) --editable ./benchmarks --group dev
	@touch $@

$(VENV)/.parsers: pyproject.toml | $(VENV)/.pip
	@echo "==> installing what the tests of the parsers need"
	@$(BIN)/pip install --quiet $(PIP_ARGS) --group parsers
	@touch $@

$(VENV)/.test: benchmarks/pyproject.toml $(VENV)/.core
	@echo "==> installing what the tests need that need no engine"
	@$(BIN)/pip install --quiet $(PIP_ARGS) --editable '.[hub,mcp]' --editable ./benchmarks --group test
	@touch $@

weights: setup
	@$(BIN)/localagent models pull >/dev/null

demo: weights
	@echo '==> localagent run "Name three colours."'
	@$(BIN)/localagent run "Name three colours." --stats

serve-demo: dev
	@$(BIN)/python -m tests.server.acceptance.demonstration

# Into the user's cache folder, Python's into environments of their own. NEWEST=1: not the versions that CI runs.
clients: dev
	@echo "==> installing clients for the acceptance tests"
	@$(BIN)/python -m tests.server.acceptance.installed $(if $(NEWEST),--newest)

test: dev weights
	@echo "==> all tests"
	@$(WATCHED) -m pytest $(SPREAD) $(TESTS)

test-fast: dev weights
	@echo "==> the fast tests"
	@HYPOTHESIS_PROFILE=fast $(WATCHED) -m pytest -p tests.fast $(SPREAD) $(TESTS)

test-core: $(VENV)/.test
	@echo "==> the tests that need no engine"
	@$(BIN)/python -m pytest -m "not engine" $(TESTS)

test-parsers: $(VENV)/.parsers
	@echo "==> the tests of the parsers, without localagent"
	@PARSERS_ALONE=1 $(BIN)/python -m pytest tests/parsers

test-long: dev weights
	@echo "==> the properties with thirty times as many examples: an hour or so"
	@HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest

mutants: dev weights
	@echo "==> $(COUNT) faults, seed $(SEED)"
	@$(BIN)/python -m tests.mutants --seed $(SEED) --count $(COUNT) --only "$(ONLY)" $(if $(NOTES),--notes "$(NOTES)") $(if $(JOBS),--jobs $(JOBS))

screens: dev
	@$(BIN)/python -m tests.cli.terminal.scenes

check: dev
	@echo "==> style and types"
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: dev
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

fuzz: dev
ifdef GUIDED
	@$(BIN)/pip install --quiet $(PIP_ARGS) --group fuzz
	@$(BIN)/python -m tests.parsers.fuzz --guided -max_total_time=$(FUZZ_SECONDS) -max_len=60 -print_final_stats=1
else
	@$(BIN)/python -m tests.parsers.fuzz --seed $(SEED) $(if $(FUZZ_COUNT),--count $(FUZZ_COUNT),--seconds $(FUZZ_SECONDS))
endif

bench: dev weights
	@$(WATCHED) benchmarks/host_overhead.py nano --chat --threads 1
	@$(WATCHED) benchmarks/host_overhead.py nano-mlx --tokens 1000
	@$(WATCHED) benchmarks/host_overhead.py smollm2 --tokens 300 --threads 1
	@$(WATCHED) -m localagent bench model lfm2-nano --threads 1
	@$(WATCHED) -m localagent bench model lfm2-nano --backend mlx --sample 21
	@$(WATCHED) -m localagent bench model smollm2-135m --threads 1 --tools none
	@$(WATCHED) benchmarks/exactness.py --calls 20
	@$(WATCHED) -m localagent bench parsers
	@$(WATCHED) benchmarks/messages.py
	@$(WATCHED) benchmarks/agent_loop.py
	@$(WATCHED) benchmarks/concurrency.py nano --rounds 1 --threads 1
	@$(WATCHED) benchmarks/serving.py nano --rounds 1 --threads 1
	@$(WATCHED) benchmarks/terminal.py nano

# The same commit, compiler and flags as the engine in this environment; without its web page.
LLAMA_SOURCE := build/llama-server
llama-server: setup
	@mkdir -p $(LLAMA_SOURCE)
	@$(BIN)/pip download --quiet $(PIP_ARGS) --no-deps --no-binary :all: --dest $(LLAMA_SOURCE) \
		llama-cpp-python==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
	@tar -xzf $(LLAMA_SOURCE)/llama_cpp_python-*.tar.gz -C $(LLAMA_SOURCE) --strip-components 1
	@eval cmake -S $(LLAMA_SOURCE)/vendor/llama.cpp -B $(LLAMA_SOURCE)/made -DCMAKE_BUILD_TYPE=Release \
		$$($(BIN)/python -c 'from localagent.hosts.llamacpp.compiling import cmake_args; print(cmake_args())') \
		-DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
		>$(LLAMA_SOURCE)/cmake.log
	@cmake --build $(LLAMA_SOURCE)/made --target llama-server --parallel
	@echo "python benchmarks/serving.py --llama-server $(LLAMA_SOURCE)/made/bin/llama-server"

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
