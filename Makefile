# make install   a virtual environment in .venv with the exact versions of constraints.txt
# make demo      four learners on this machine train a tiny Gemma; one is slow, one is killed and returns
# make test      what CI runs: lint, types, tests
# make bugs      the whole bug table: every deliberate bug, caught by the simulator
# make matrix    kill -9 of real processes at every named point of the protocol, five times each
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One torch thread per process: more are far slower whenever another process holds the cores.
export OMP_NUM_THREADS := 1

.PHONY: install demo test lint format bugs matrix clean
.DEFAULT_GOAL := test

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Atoll needs Python 3.10 or newer and $(PYTHON) is " + sys.version.split()[0] + ". Try: make install PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/atoll train gemma --size tiny --learners 4 --speeds 1,1,0.5,1 --kill learner-1@40%

test: lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bugs: $(STAMP)
	$(BIN)/python -m pytest -m slow tests/chaos/test_bug_table.py -s

matrix: $(STAMP)
	$(BIN)/python -m tests.chaos.kill_matrix --times 5

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
