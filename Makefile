# One verb per need; every verb makes .venv ready by itself. `make` alone lists them.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

SEEDS ?= 200
MINUTES ?= 5
TRANSFERS ?= 1000
KILLS ?= 20
READY := .venv/.ready
BIN := .venv/bin

# .venv/.ready names the directory it was made in: a copied environment is made anew.
ifneq ($(shell cat $(READY) 2>/dev/null),$(realpath .))
.PHONY: $(READY)
endif

.PHONY: help run test check format sim mutants chaos transfers servers sparkchaos bench requirements docs setup

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(READY) ## run a cluster with demonstration traffic on this machine; Ctrl-C stops it
	@$(BIN)/alphorn up --client-managers 2 --demo

test: check ## set up, check, and run every test
	@$(BIN)/pytest -n 2 --dist loadgroup

check: $(READY) ## format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## rewrite the sources in the one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

sim: $(READY) ## simulate whole groups under faults: make sim SEEDS=2000
	@$(BIN)/alphorn sim --seeds $(SEEDS)
	@$(BIN)/alphorn sim --seeds $(SEEDS) --kind servers

mutants: $(READY) ## prove that the simulator's checkers catch deliberate mistakes
	@$(BIN)/alphorn sim --mutants

chaos: $(READY) ## real processes, killed and restarted under load: make chaos MINUTES=5
	@$(BIN)/alphorn chaos --minutes $(MINUTES)

transfers: $(READY) ## transactions while nodes die at every step of one: make transfers TRANSFERS=1000
	@$(BIN)/alphorn chaos --transfers $(TRANSFERS)

servers: $(READY) ## kill message servers while work processes tell each other things: make servers KILLS=100
	@$(BIN)/alphorn chaos --servers --kills $(KILLS)

sparkchaos: $(READY) ## kill drivers, workers and primaries under a Spark job: make sparkchaos KILLS=100
	@$(BIN)/python -m tests.spark.chaos --kills $(KILLS)

bench: $(READY) ## measure the log and the message cluster on this machine
	@$(BIN)/alphorn bench log
	@$(BIN)/alphorn bench messages
	@$(BIN)/alphorn bench messages --together

requirements: $(READY) ## which requirements have a test that proves them
	@$(BIN)/python -m tools.requirements

docs: $(READY) ## write the generated pages of docs/ and check its links
	@$(BIN)/python -m tools.docs

setup: $(READY) ## make .venv ready and nothing else

$(READY): pyproject.toml bin/alphorn requirements/core.txt requirements/spark.txt requirements/dev.txt tools/setup.sh
	@sh tools/setup.sh
