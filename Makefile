# make quickstart   the whole way on this machine's CPU: a trained agent and its report, in a quarter of an hour
# make test         the tests
# make redteam      every attack suite: what the monitor, the leak audit and the grader catch
# make check        lint, formatting, types, imports between rooms, then the tests
# make clean        remove what these targets made, trained runs excepted

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/quickstart
BIN = $(VENV)/bin

# The CPU build of PyTorch, pinned, so that a machine without a GPU never downloads gigabytes of CUDA. On Linux it is
# named "+cpu" and lies on PyTorch's own page, beside whatever pip is configured to use; on a Mac the plain one has no
# CUDA. Any other build: make quickstart TORCH=torch==2.13.0
ifeq ($(shell uname -s),Linux)
TORCH ?= torch==2.13.0+cpu
else
TORCH ?= torch==2.13.0
endif
TORCH_LINKS ?= https://download.pytorch.org/whl/cpu/torch/

.PHONY: quickstart test redteam check lint clean

quickstart: $(VENV)/.installed
	$(BIN)/etude doctor
	$(BIN)/etude run nano --run $(RUN)

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# One JSON object in place of the table: make redteam REDTEAM=--json
redteam: $(VENV)/.installed-dev
	$(BIN)/python -m redteam $(REDTEAM)

check: lint test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.torch: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Etude needs Python 3.11 or newer: make PYTHON=python3.12 ...' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --retries 2 --find-links '$(TORCH_LINKS)' '$(TORCH)' || \
		{ echo 'no CPU build of PyTorch was found; name one that your pip can reach: make TORCH=torch==2.13.0 ...' >&2; exit 1; }
	touch $@

$(VENV)/.installed: $(VENV)/.torch
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.torch
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@
