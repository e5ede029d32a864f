# The everyday commands. Each does all the set-up that it needs.
VENV  ?= .venv
MODEL ?= smollm2-135m
PORT  ?= 30000
ARGS  ?=

.DEFAULT_GOAL := help
.PHONY: help image up serve test test-fast lint lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.release: pyproject.toml build/setup.sh
	@build/setup.sh release $(VENV)

$(VENV)/.engine: pyproject.toml docker/locks/cpu.txt build/setup.sh
	@build/setup.sh engine $(VENV)

$(VENV)/.test: pyproject.toml docker/locks/cpu.txt build/setup.sh
	@build/setup.sh test $(VENV)

$(VENV)/.up: $(VENV)/.release build/setup.sh
	@build/setup.sh up $(VENV)

image: $(VENV)/.release ## Build the cpu image and its deployable archive, without Docker
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" build/build.sh $(ARGS)

up: $(VENV)/.up ## Start the archive that `make image` made, on this machine's Docker Engine
	@$(VENV)/bin/slipway deploy up local-cpu-single --model-dir "$$($(VENV)/bin/keel models fetch $(MODEL) | tail -n 1)" $(ARGS)

serve: $(VENV)/.engine ## Serve a real model on this machine's CPU (MODEL, PORT, ARGS)
	@$(VENV)/bin/keel serve --model-path "$$($(VENV)/bin/keel models fetch $(MODEL) | tail -n 1)" --port $(PORT) $(ARGS)

test: $(VENV)/.test ## Lint, type-check and run every test that this machine can run
	@$(MAKE) --no-print-directory lint
	@$(VENV)/bin/python -m pytest $(ARGS)

test-fast: $(VENV)/.test ## The tests without the slow marks
	@$(VENV)/bin/python -m pytest -m "not e2e and not docker and not slow" $(ARGS)

lint: $(VENV)/.test ## ruff, mypy --strict, import-linter
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@PYTHONPATH=src $(VENV)/bin/lint-imports

lock: $(VENV)/.test ## Write docker/locks/cpu.txt anew from pyproject.toml
	@$(VENV)/bin/slipway image lock cpu

clean: ## Remove what was built here (not the caches in ~/.cache/slipway)
	rm -rf dist
