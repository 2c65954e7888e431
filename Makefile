# Everything lives in .venv; the first target that needs it makes it, with nothing but CPython
# 3.11 and its pip. A stamp remembers what was installed until pyproject.toml or the pins change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/.installed-serve
DEV := $(VENV)/.installed-dev
TPU := $(VENV)/.installed-tpu
# The tools that check deploy/ have a virtual environment of their own: they pin what others need.
DEPLOY := $(VENV)/deploy
TOOLS := $(DEPLOY)/.installed
# So have the clients of others.
CLIENTS := $(VENV)/clients
ASKERS := $(CLIENTS)/.installed
# What draws the diagrams of the site, which fetches nothing from elsewhere.
MERMAID_VERSION := 12.3.0
MERMAID := build/mermaid-$(MERMAID_VERSION).js
# And PyTorch, which is larger than all else together.
TORCH := $(VENV)/torch
# Of `make chaos`, `make fuzz` and `make soak`, which takes so many minutes.
SEED := 1
MINUTES := 30
PINS := pyproject.toml constraints.txt
WORKERS := -n 3
# A file stays on one worker, so what its fixtures start is started once. Files come in the order of
# tests/conftest.py: xdist would begin with those of many tests, which are the quick ones.
PARALLEL := $(WORKERS) --dist loadfile --no-loadscope-reorder
# Files that have tests with a mark: to import all the others for them takes as long as some do.
marked = $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests)
# An image may say otherwise: every worker would compile all tests and packages anew, which takes
# longer than to collect them.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test chaos attacks fuzz soak test-tpu test-torch test-slow test-deploy audit lint types protos docs site locks format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

setup: $(DEV)  ## install the project and its development tools into .venv

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(SERVE): $(PINS) | $(BIN)/python
	@echo "installing blockdraft[serve] into $(VENV)" >&2
	$(PIP) install -c constraints.txt -e '.[serve]'
	@touch $@

$(DEV): $(PINS) | $(BIN)/python
	@echo "installing blockdraft[serve,train,bench,dev] into $(VENV)" >&2
	$(PIP) install -c constraints.txt -e '.[serve,train,bench,dev]'
	@touch $@ $(SERVE)

$(TPU): $(PINS) $(DEV) | $(BIN)/python
	@echo "installing blockdraft[tpu] into $(VENV)" >&2
	$(PIP) install -c constraints.txt -e '.[tpu]'
	@touch $@

$(TOOLS): tests/deploy/requirements.txt tests/deploy/prometheus.sh | $(BIN)/python
	@echo "installing the tools of tests/deploy into $(DEPLOY)" >&2
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	sh tests/deploy/prometheus.sh $(DEPLOY)
	@touch $@

$(ASKERS): tests/clients/requirements.txt tests/clients/package.json | $(BIN)/python
	@echo "installing the clients of tests/clients into $(CLIENTS)" >&2
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	cp tests/clients/package.json $(CLIENTS)
	$(CLIENTS)/bin/npm install --silent --no-audit --no-fund --no-package-lock --prefix $(CLIENTS)
	@touch $@

$(MERMAID): $(ASKERS)
	@mkdir -p $(@D) && scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT \
	&& $(CLIENTS)/bin/npm pack --silent --pack-destination "$$scratch" mermaid@$(MERMAID_VERSION) >&2 \
	&& tar -xzmf "$$scratch"/*.tgz -C "$$scratch" package/dist/mermaid.min.js \
	&& mv "$$scratch"/package/dist/mermaid.min.js $@

$(TORCH)/.installed: $(PINS) | $(BIN)/python
	@echo "installing blockdraft[torch,bench,dev] into $(TORCH)" >&2
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[torch,bench,dev]'
	@touch $@

demo: $(SERVE)  ## start everything, stream an answer, measure with and without drafting, stop
	@$(BIN)/blockdraft demo

bench: $(SERVE)  ## the figures of the demo as one JSON object
	@$(BIN)/blockdraft demo --json

test: $(DEV)  ## run the tests that take seconds
	$(BIN)/python -m pytest -q $(PARALLEL) --durations=15 -m "not slow and not tpu and not deploy"

test-tpu: $(TPU)  ## compile for TPU slices, of which none is needed
	$(BIN)/python -m pytest -q $(WORKERS) -m "tpu and not slow" $(call marked,tpu)

test-torch: $(TORCH)/.installed  ## run targets in PyTorch
	$(TORCH)/bin/python -m pytest -q tests/models/torch_target

test-slow: $(DEV) $(ASKERS) $(MERMAID)  ## run the tests that take minutes, some of them compiled as for production
	XLA_FLAGS="--xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true \
	  --xla_cpu_parallel_codegen_split_count=32 $$XLA_FLAGS" \
	$(BIN)/python -m pytest -q $(PARALLEL) --durations=0 --durations-min=1 -m optimized \
	  $(call marked,optimized)
	$(BIN)/python -m pytest -q $(PARALLEL) --durations=0 --durations-min=1 \
	  -m "slow and not tpu and not optimized" $(call marked,slow)

chaos: $(DEV)  ## kill, stop, starve and cut while 1,000 requests run, and see that nothing is lost
	$(BIN)/python -m tools.chaos --seed $(SEED)
	$(BIN)/python -m tools.chaos.overload --seed $(SEED)

attacks: $(DEV)  ## attack a service of the default target beside ordinary callers
	$(BIN)/python -m tools.chaos.attacks

soak: $(DEV)  ## load for MINUTES, 30 by default, and see that nothing grows
	$(BIN)/python -m tools.chaos.soak --seed $(SEED) --minutes $(MINUTES)

fuzz: $(DEV)  ## mutate messages to each service, HTTP, files and grammars, many thousands of each
	$(BIN)/python -m tools.fuzz --seed $(SEED)

test-deploy: $(DEV) $(TOOLS)  ## check the image, the manifests, the rules and the dashboards of deploy/
	BLOCKDRAFT_DEPLOY_TOOLS=$(abspath $(DEPLOY)/bin) \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=5 -m deploy tests/deploy

lint: $(DEV)  ## check style, words, links, protos, import rules, workflows, and that generated files are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint protos
	$(BIN)/lint-imports
	$(BIN)/python docs/terms.py
	$(BIN)/python docs/site.py && $(BIN)/zensical build --strict --clean -f build/zensical.toml >/dev/null
	$(BIN)/python docs/generate.py --check
	$(BIN)/python deploy/generate.py --check
	$(BIN)/pre-commit validate-config
	$(BIN)/check-jsonschema -qq --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -qq --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@drift=$$(mktemp -d) && trap 'rm -rf "$$drift"' EXIT \
	&& PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=python sh protos/generate.sh "$$drift" \
	&& diff -r -x __pycache__ -x __init__.py -x py.typed protos/blockdraft_protos "$$drift/blockdraft_protos" \
	&& echo "generated code is current" \
	|| { echo "protos/blockdraft_protos is not what protos/ generates: make protos" >&2; exit 1; }

types: $(DEV)  ## check types
	$(BIN)/mypy

protos: $(DEV)  ## generate protos/blockdraft_protos
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=python sh protos/generate.sh

docs: $(DEV)  ## generate the tables of docs/configuration.md and the files of deploy/ made of others
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/generate.py

site: $(DEV) $(MERMAID)  ## build the documentation's site into build/site
	$(BIN)/python docs/site.py --mermaid $(MERMAID)
	$(BIN)/zensical build --strict --clean -f build/zensical.toml

locks: $(TOOLS)  ## pin what the images are made of by hash
	sh deploy/docker/lock.sh $(DEPLOY)/bin/uv

# Not in .ci/run, which has to pass where nothing but a mirror of packages can be reached.
audit: $(TOOLS)  ## ask PyPI for known vulnerabilities in what the images install
	$(DEPLOY)/bin/uvx --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes \
	  --progress-spinner off -r deploy/docker/lock-cpu.txt -r deploy/docker/lock-tpu.txt

format: $(DEV)  ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and every cache in the tree
	rm -rf $(VENV) build .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
