# Every target makes its own environment in .venv and installs what it needs, pinned by
# constraints.txt. To take torch from another wheel index (PyTorch's CPU builds, say):
#     make setup PIP_ARGS="--extra-index-url <index>"
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: setup demo test check bench clean
.DELETE_ON_ERROR:

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "crossbatch needs Python 3.11 or newer; pass PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch first: later requirements then find it installed and do not pull another build.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing crossbatch into $(VENV) (a minute or two) ..."
	$(INSTALL) torch hatchling editables
	$(INSTALL) --no-build-isolation -e '.[fast,report,serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) --no-build-isolation -e '.[ann,baselines,dev,docs,e2e,fast,hf,lightning,report,serve,text,track,tune]'
	@touch $@

setup: $(VENV)/.dev  ## make .venv with everything that the other targets need

demo: $(VENV)/.core  ## synthetic log -> dataset -> training -> evaluation -> recommendations -> report
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh demo

.PHONY: lint
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## lint, strict types, all tests but the slow ones, and the wheel in a clean environment
	$(BIN)/pytest -q -n 2 -m "not slow"
	$(MAKE) test-dist

test: lint  ## everything that must hold: lint, types, all tests, torch alone, the wheel, the oldest versions
	$(BIN)/pytest -q -n 2
	$(MAKE) test-torch-only test-dist test-oldest

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

# The wheel with its declared dependencies and nothing else: no extras, none of our tools.
.PHONY: test-dist
test-dist: dist $(VENV)-dist/.ready
	$(VENV)-dist/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	$(VENV)-dist/bin/pip check
	sh tests/release/smoke.sh $(VENV)-dist/bin

$(VENV)-dist/.ready: pyproject.toml constraints.txt | dist
	rm -rf $(VENV)-dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) dist/*.whl
	@touch $@

# The lower bounds that pyproject.toml declares; .venv has the newest versions.
.PHONY: test-oldest
test-oldest: $(VENV)-oldest/.ready  ## the fast tests with the oldest dependencies that are allowed
	$(VENV)-oldest/bin/python -m pytest -q -n 2 -m "not slow" -W ignore::DeprecationWarning $(OLDEST_TESTS)

# Where the dependencies' own interfaces are used; the rest would repeat what .venv has shown.
OLDEST_TESTS = $(addprefix tests/,kernels retrieval evaluation reports test_config.py data/readers \
	data/prepare/test_prepare.py training/test_run.py training/optimizers serving/bundle/test_export.py serving/server/test_server.py cli/test_train.py)

$(VENV)-oldest/.ready: pyproject.toml constraints-oldest.txt
	rm -rf $(VENV)-oldest
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt $(PIP_ARGS) torch hatchling editables
	$(VENV)-oldest/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt $(PIP_ARGS) --no-build-isolation -e '.[ann,fast,report,serve,track]' hypothesis pytest pytest-xdist
	@touch $@

# The negatives library promises to need nothing but torch: its tests run where nothing else is.
.PHONY: test-torch-only
test-torch-only: $(VENV)-torch/.ready
	$(VENV)-torch/bin/python -m pytest -q -m "not slow" tests/negatives

$(VENV)-torch/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch pytest hypothesis hatchling editables
	$(VENV)-torch/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# Spark is too large for everyone's environment; Java 17 or newer must be on the PATH.
.PHONY: test-spark
test-spark: $(VENV)-spark/.ready  ## both engines of preparation on a real local Spark
	$(VENV)-spark/bin/python -m pytest -q tests/data/prepare/test_spark_engine.py tests/data/prepare/test_spark_session.py

$(VENV)-spark/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-spark
	$(VENV)-spark/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch pytest hypothesis hatchling editables
	$(VENV)-spark/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) --no-build-isolation -e '.[spark]'
	@touch $@

# TorchRec wants its own build of fbgemm and pins, so it lives in an environment of its own.
.PHONY: test-torchrec
test-torchrec: $(VENV)-torchrec/.ready  ## tables that are spread over ranks
	$(VENV)-torchrec/bin/python -m pytest -q tests/training/distributed/test_sharded_table.py

$(VENV)-torchrec/.ready: pyproject.toml constraints.txt requirements/torchrec-cpu.txt
	$(PYTHON) -m venv $(VENV)-torchrec
	$(VENV)-torchrec/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch pytest hypothesis hatchling editables
	$(VENV)-torchrec/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) --no-build-isolation -e '.[fast]'
	$(VENV)-torchrec/bin/pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps -r requirements/torchrec-cpu.txt
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
EXTRAS = $(shell $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"], sep=",")')
$(VENV)-audit/.ready: pyproject.toml constraints.txt
	rm -rf $(VENV)-audit
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch hatchling editables
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)-audit-tools/.ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-audit-tools
	$(VENV)-audit-tools/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) cyclonedx-bom packaging pip-audit pip-licenses
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-spark $(VENV)-torch $(VENV)-torchrec $(VENV)-audit $(VENV)-audit-tools $(VENV)-dist $(VENV)-oldest $(VENV)-bench-* demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
