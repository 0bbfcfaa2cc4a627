# Two commands are enough: `make lab` to use it, `make test` to trust it. Each sets up what it needs and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.set-up
BUNDLE := widgets/nbengine_widgets/static/lab.js
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)
PYTEST_ARGS ?=

.PHONY: help setup lab test test-js demo bench lint format chromium clean

help:  ## Print this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(SETUP) $(BUNDLE)  ## Make .venv with everything in it, and the widget bundle

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbengine needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q "pip>=25.1"
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0 triton==3.7.1
	NBENGINE_SKIP_WIDGETS=1 $(BIN)/python -m pip install -q -c constraints.txt --group dev -e ".[cpu,lab]"
	touch $@

widgets/node_modules/.set-up: widgets/package.json widgets/package-lock.json
	cd widgets && npm ci --no-audit --no-fund --loglevel=error
	touch $@

$(BUNDLE): widgets/node_modules/.set-up $(shell find widgets/src -type f 2>/dev/null)
	cd widgets && npm run --silent build

lab: setup  ## Open JupyterLab on the first notebook, with the small model at hand
	$(BIN)/nbengine pull
	$(BIN)/jupyter lab $(ROOT_FLAG) notebooks/01_step_by_step.ipynb $(LAB_ARGS)

demo: setup  ## Run the first notebook without a screen and write build/demo.html
	$(BIN)/nbengine pull
	NBENGINE_STATIC=1 $(BIN)/jupyter nbconvert --log-level=ERROR --execute --to html --output-dir build --output demo \
	  --HTMLExporter.mathjax_url= --HTMLExporter.require_js_url= notebooks/01_step_by_step.ipynb
	@echo "Wrote $(CURDIR)/build/demo.html"

test: setup chromium test-js  ## Run every test, in JupyterLab and a real browser too
	$(BIN)/nbengine pull
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-js: widgets/node_modules/.set-up  ## Run the widget's own tests
	cd widgets && npm run --silent check && npm test --silent

lint: setup  ## Check style, types and the floors that imports may not climb
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:kernels:widgets $(BIN)/mypy --no-explicit-package-bases benchmarks/*.py
	$(BIN)/lint-imports --no-logo

format: setup  ## Rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## Print the comparison table (see benchmarks/README.md)
	$(BIN)/nbengine pull
	$(BIN)/python benchmarks/compare.py

# The browser tests drive Debian's Chromium. Without root they say what is missing and are skipped.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "No chromium: the browser tests will be skipped. Install it with your package manager."

clean:  ## Remove what the other targets made
	rm -rf .venv build widgets/node_modules widgets/nbengine_widgets/static
