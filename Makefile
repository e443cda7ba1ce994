# make demo and make test work on a fresh clone with nothing but python3 (3.11 or newer) and make.
# Environments are made when they are missing and made current when a lock file or pyproject.toml has changed.

PYTHON ?= python3
NEWEST_PYTHON ?= python3.13
WORKERS ?= 2
UV ?= uv
PYTEST_ARGS ?=

# All names are relative, so that the checkout may lie in a folder with spaces in its name.
VENV := .venv
PLAN_VENV := .venv-plan
NEWEST_VENV := .venv-newest
RUN := $(VENV)/bin/python
RUN_PLAN := $(PLAN_VENV)/bin/python
RUN_NEWEST := $(NEWEST_VENV)/bin/python
PYTEST := -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)
CHECKED := src tests $(wildcard benchmarks scripts examples)

# $(1): an environment's folder; $(2): its Python. A folder that is half made, or whose Python has gone, is made anew.
define make_environment
@"$(2)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "brim needs Python 3.11 or newer; \`$(2)\` is `"$(2)" --version 2>&1`. Try: make PYTHON=python3.12" >&2; exit 1; }
"$(2)" -m venv --clear $(1)
endef

# An environment holds the absolute path of its checkout. In a folder that was moved or copied it is no longer current.
$(shell for venv in $(VENV) $(PLAN_VENV) $(NEWEST_VENV); do \
  test "`cat $$venv/place 2>/dev/null`" = "`pwd`" || rm -f $$venv/*.stamp; done)

# $(1): an environment's folder; $(2): its lock, which has all that brim needs.
define install
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/$(2).lock
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
@pwd > $(1)/place
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-plan test-newest check format lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/base.stamp ## plan, train, interrupt and resume a small model on text that is on this machine
	$(RUN) scripts/demo.py

test: $(VENV)/dev.stamp ## the tests that take minutes in all
	$(RUN) $(PYTEST) -m "not slow"

test-slow: $(VENV)/dev.stamp ## the proofs that take minutes each
	$(RUN) $(PYTEST) -m "slow and not plan"

test-plan: $(PLAN_VENV)/plan.stamp ## the tests that compile for GPUs which are not here (downloads 1.4 GB once)
	$(RUN_PLAN) $(PYTEST) -m plan

# Python 3.11 has no JAX after 0.10. The locks hold the newest one for newer Pythons.
test-newest: $(NEWEST_VENV)/plan.stamp ## the planner's tests on the newest Python and JAX (downloads 1.7 GB once)
	$(RUN_NEWEST) $(PYTEST) -m "not slow" tests/planner tests/compiled tests/hardware tests/techniques/test_plan_bytes.py

check: $(VENV)/dev.stamp ## format, lint, types, architecture
	$(RUN) -m ruff format --check $(CHECKED)
	$(RUN) -m ruff check $(CHECKED)
	$(RUN) -m mypy
	$(RUN) -m pytest tests/test_architecture.py

format: $(VENV)/dev.stamp ## put all files into the one format, and mend what can be mended
	$(RUN) -m ruff check --fix $(CHECKED)
	$(RUN) -m ruff format $(CHECKED)

LOCK := $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --no-python-downloads

lock: ## resolve the versions (needs uv); with UPGRADE=--upgrade, to the newest
	@command -v "$(UV)" >/dev/null || { echo "make lock needs uv: pip install uv, or make lock UV=/path/to/uv" >&2; exit 1; }
	$(LOCK) $(UPGRADE) -o requirements/base.lock
	$(LOCK) $(UPGRADE) --extra dev -o requirements/dev.lock
	$(LOCK) $(UPGRADE) --extra dev --extra plan -o requirements/plan.lock

clean: ## remove the environments and all that tools leave behind; runs/ stays
	rm -rf $(VENV) $(PLAN_VENV) $(NEWEST_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(RUN):
	$(call make_environment,$(VENV),$(PYTHON))

$(RUN_PLAN):
	$(call make_environment,$(PLAN_VENV),$(PYTHON))

$(RUN_NEWEST):
	$(call make_environment,$(NEWEST_VENV),$(NEWEST_PYTHON))

$(VENV)/base.stamp: requirements/base.lock pyproject.toml | $(RUN)
	$(call install,$(VENV),base)
	@touch $@

# The development lock holds the base lock, so this environment serves both.
$(VENV)/dev.stamp: requirements/dev.lock requirements/base.lock pyproject.toml | $(RUN)
	$(call install,$(VENV),dev)
	@touch $(VENV)/base.stamp $@

%/plan.stamp: requirements/plan.lock pyproject.toml | %/bin/python
	$(call install,$*,plan)
	@touch $@
