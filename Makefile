# Every target makes its own environment in .venv and installs what it needs, pinned by
# constraints.txt. To take torch from another wheel index (PyTorch's CPU builds, say):
#     make setup PIP_ARGS="--extra-index-url <index>"
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP = bin/pip install --quiet --disable-pip-version-check $(PIP_ARGS)
PINNED = -c constraints.txt
PYTEST = bin/python -m pytest -q
# A file stays in one process, so that what its tests share is made once.
PARALLEL := -n 2 --dist loadfile
REPORTS := build/tests

.PHONY: setup demo test check bench clean
.DELETE_ON_ERROR:

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "crossbatch needs Python 3.11 or newer; pass PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/$(PIP) $(PINNED) pip  # the bundled one may not know dependency groups

# torch first: later requirements then find it installed and do not pull another build.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing crossbatch into $(VENV) (a minute or two) ..."
	$(VENV)/$(PIP) $(PINNED) torch hatchling editables
	$(VENV)/$(PIP) $(PINNED) --no-build-isolation -e '.[report,serve]'
	@touch $@

# Every extra but Spark, which has an environment of its own.
$(VENV)/.dev: $(VENV)/.core
	$(VENV)/$(PIP) $(PINNED) --no-build-isolation --group dev \
	  -e '.[ann,baselines,cloud,hf,lightning,mlflow,onnx,pandas,postgres,report,serve,tensorboard,text,tune,wandb]'
	@touch $@

setup: $(VENV)/.dev  ## make .venv with everything that the other targets need

demo: $(VENV)/.core  ## synthetic log -> dataset -> training -> evaluation -> recommendations -> report
	@$(BIN)/crossbatch demo demo

.PHONY: lint
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## lint, strict types, all tests but the slow ones, and the wheel in a clean environment
	$(VENV)/$(PYTEST) $(PARALLEL) -m "not slow"
	$(MAKE) test-dist

test: lint  ## everything that must hold: lint, types, all tests, Spark, TorchRec, Ray, torch alone, the wheel, the oldest versions
	rm -rf $(REPORTS)
	$(VENV)/$(PYTEST) $(PARALLEL) --junitxml=$(REPORTS)/main.xml
	$(MAKE) test-cluster test-torch-only test-dist test-oldest
	$(BIN)/python tools/skips.py $(REPORTS)/*.xml

.PHONY: docs
docs: $(VENV)/.dev  ## the documentation site, warnings as errors -> build/site/index.html
	$(BIN)/python -m sphinx -W --keep-going -q docs build/site
	@echo "Open build/site/index.html"

.PHONY: results
results: $(VENV)/.dev  ## tables and figures of results/, and the pages that show them, from the records
	$(BIN)/python tools/result_tables.py

.PHONY: dist
dist: $(VENV)/.dev  ## the source distribution, and the wheel made from it -> dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*  # the metadata is valid, and README.md renders on a package index

# The wheel with its declared dependencies and nothing else: no extras, none of our tools.
.PHONY: test-dist
test-dist: dist $(VENV)-dist/.ready
	$(VENV)-dist/$(PIP) --force-reinstall --no-deps dist/*.whl
	$(VENV)-dist/bin/pip check
	sh tests/release/smoke.sh $(VENV)-dist/bin

$(VENV)-dist/.ready: pyproject.toml constraints.txt | dist
	rm -rf $(VENV)-dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/$(PIP) $(PINNED) dist/*.whl
	@touch $@

# The lower bounds that pyproject.toml declares; .venv has the newest versions. Another numba must not find
# compiled functions that are being replaced by its own: it has a cache for itself.
.PHONY: test-oldest
test-oldest: $(VENV)-oldest/.ready  ## the fast tests with the oldest dependencies that are allowed
	NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)-oldest/compiled $(VENV)-oldest/$(PYTEST) $(PARALLEL) -m "not slow" -W ignore::DeprecationWarning $(INTERFACES)

# Where the dependencies' own interfaces are used; the rest would repeat what .venv has shown.
INTERFACES = $(addprefix tests/,kernels/test_contract.py retrieval/test_index.py retrieval/test_ivf.py evaluation/test_baselines.py \
	reports test_config.py data/readers data/prepare/test_prepare.py data/prepare/test_staged_log.py training/test_run.py \
	training/test_trackers.py tuning/test_study.py serving/bundle/test_export.py serving/server/test_server.py cli/test_train.py cli/test_exit_codes.py)

$(VENV)-oldest/.ready: pyproject.toml constraints-oldest.txt
	rm -rf $(VENV)-oldest
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/$(PIP) -c constraints-oldest.txt torch hatchling editables
	$(VENV)-oldest/$(PIP) -c constraints-oldest.txt --no-build-isolation -e '.[ann,mlflow,report,serve,tensorboard,tune]' hypothesis pytest pytest-xdist
	@touch $@

# Another Python with the newest versions: make test-python PYTHON=python3.13
.PHONY: test-python
test-python: $(VENV)-python/.ready  ## the same tests with the Python that PYTHON names
	NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)-python/compiled $(VENV)-python/$(PYTEST) $(PARALLEL) -m "not slow" $(INTERFACES)

$(VENV)-python/.ready: pyproject.toml constraints.txt
	rm -rf $(VENV)-python
	$(PYTHON) -m venv $(VENV)-python
	$(VENV)-python/$(PIP) $(PINNED) torch hatchling editables
	$(VENV)-python/$(PIP) $(PINNED) --no-build-isolation -e '.[ann,mlflow,report,serve,tensorboard,tune]' hypothesis pytest pytest-xdist
	@touch $@

# The negatives library promises to need nothing but torch: its tests run where nothing else is.
.PHONY: test-torch-only
test-torch-only: $(VENV)-torch/.ready
	$(VENV)-torch/$(PYTEST) -m "not slow" tests/negatives

$(VENV)-torch/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/$(PIP) $(PINNED) torch pytest hypothesis hatchling editables
	$(VENV)-torch/$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

# Spark with a Java from PyPI, Ray, and TorchRec, whose pins fit no other environment.
.PHONY: test-cluster
test-cluster: $(VENV)-cluster/.ready  ## preparation on a real local Spark; tables spread over ranks by TorchRec; training on Ray's workers
	$(VENV)-cluster/$(PYTEST) --junitxml=$(REPORTS)/cluster.xml $(addprefix tests/,data/prepare/test_spark_engine.py \
	  data/prepare/test_spark_session.py training/distributed/test_sharded_table.py training/distributed/test_ray.py)

$(VENV)-cluster/.ready: pyproject.toml constraints.txt requirements/torchrec-cpu.txt
	rm -rf $(VENV)-cluster
	$(PYTHON) -m venv $(VENV)-cluster
	$(VENV)-cluster/$(PIP) $(PINNED) pip
	$(VENV)-cluster/$(PIP) $(PINNED) torch hatchling editables --group cluster
	$(VENV)-cluster/$(PIP) $(PINNED) --no-build-isolation -e '.[spark]'
	$(VENV)-cluster/$(PIP) --no-deps -r requirements/torchrec-cpu.txt
	@touch $@

bench: $(VENV)/.dev  ## ratios behind the performance claims; BENCH_ARGS=--quick for a smoke run
	for name in steps growth memory validation loss retrieval ann serving data_batches data_prepare; do \
	  $(BIN)/python benchmarks/$$name.py $(BENCH_ARGS) || exit 1; \
	done

# FAULTS of each kind, seeded: ten minutes for 300 on a quiet core. The page's table is of the last run.
.PHONY: faults
FAULTS ?= 300
faults: $(VENV)/.dev  ## kills, damaged and hostile files, a failing machine: nothing may be lost
	CROSSBATCH_FAULTS=$(FAULTS) CROSSBATCH_FAULTS_REPORT=docs/reliability/faults.json $(BIN)/pytest -q tests/faults
	$(BIN)/python tools/fault_table.py

.PHONY: audit
audit: $(VENV)-audit/.ready $(VENV)-audit-tools/.ready  ## licences, bill of materials, known vulnerabilities of all extras
	$(VENV)-audit-tools/bin/python tools/audit.py $(VENV)-audit/bin/python --sbom build/sbom.cdx.json

# crossbatch with every extra, to be audited; the tools must not be among its packages.
$(VENV)-audit/.ready: pyproject.toml constraints.txt
	rm -rf $(VENV)-audit
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/$(PIP) $(PINNED) torch hatchling editables
	$(VENV)-audit/$(PIP) $(PINNED) --no-build-isolation -e '.[all]'
	@touch $@

$(VENV)-audit-tools/.ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-audit-tools
	$(VENV)-audit-tools/$(PIP) $(PINNED) cyclonedx-bom packaging pip-audit pip-licenses
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-cluster $(VENV)-python $(VENV)-torch $(VENV)-audit $(VENV)-audit-tools $(VENV)-dist $(VENV)-oldest $(VENV)-bench-* demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
