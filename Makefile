# Every target does its own set-up in .venv/, from python3 (with venv) alone.
# A stamp is newer than what the packages are named in, so that nothing is
# installed twice and a changed dependency is noticed.
#
#   make demo ARGS="--changes 1000"     make test ARGS="tests/relay -x"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# For a first look nothing is compiled: seconds instead of a minute of compilers.
QUICK := $(VENV)/installed-quick
RUN := $(VENV)/installed
DEV := $(VENV)/installed-dev
# The whole suite goes in more processes than the two cores that it is made for have: tests wait, too.
# With four, tests of Spark starve. What ARGS asks for goes in one.
PROCESSES ?= 3
AT_ONCE := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 15
# Formats, rules and state machines: no database, no Spark, no browser.
FAST := $(addprefix tests/,schemas registry conf relay/ring $(addprefix client/,machines dispatcher checkpoints puller))
SHOW := $(PYTHON) tools/show_progress.py
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input
PACKAGING := pyproject.toml setup.py $(shell find schemas relay client -name '*.px[id]' -o -name '*.pyx')

.PHONY: install build demo test test-fast lint bench docs site clean
.SILENT:

install: $(DEV)

build: $(RUN)

demo: $(if $(wildcard $(RUN)),$(RUN),$(QUICK))
	$(BIN)/databus demo $(ARGS)

test: $(DEV)
	$(BIN)/python -m tools.fetch_test_servers
	$(BIN)/python -m tools.fetch_avro
	$(BIN)/python -m tools.fetch_ptubes
	$(BIN)/python -m tools.fetch_canal
	$(BIN)/python -m tools.fetch_canal_clients
	$(BIN)/python -m tools.fetch_archives
	$(BIN)/python -m tools.fetch_mongodb
	TMPDIR=$$(tools/folder_for_tests.sh) $(BIN)/python -m pytest $(or $(ARGS),$(AT_ONCE))

test-fast: $(DEV)
	TMPDIR=$$(tools/folder_for_tests.sh) $(BIN)/python -m pytest $(AT_ONCE) $(FAST)

lint: $(DEV)
	$(BIN)/ruff format --check --quiet . || \
		{ echo "lint: not formatted; run $(BIN)/ruff format ."; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-pretty

bench: $(DEV)
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(DEV)
	$(BIN)/python -m tools.generate_references

site: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	echo "open site/index.html, or run $(BIN)/mkdocs serve"

clean:
	rm -rf $(VENV) build dist site *.egg-info .cache .ruff_cache .pytest_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(SHOW) "making $(VENV)" $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "try: apt install python3-venv"; exit 1; }

# The interpreter is order-only: its time stamp is that of the system's Python.
$(QUICK): pyproject.toml setup.py | $(BIN)/python
	DATABUS_COMPILE=no $(SHOW) "installing Python packages into $(VENV)" $(PIP) --editable .
	touch $@

$(RUN): $(PACKAGING) | $(BIN)/python
	$(SHOW) "compiling, and installing Python packages into $(VENV)" $(PIP) --editable .
	touch $@

$(DEV): $(PACKAGING) tools/install_system_packages.sh | $(BIN)/python
	PYTHON=$(PYTHON) tools/install_system_packages.sh
	$(SHOW) "compiling, and installing Python packages into $(VENV)" $(PIP) --editable '.[dev]'
	touch $(RUN) $@
