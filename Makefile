# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

NATIVE := setup.py $(wildcard src/rewire/kernels/native/*) src/rewire/kernels/build.py

.PHONY: demo test lint types check docs sanitize bench zoo clean

demo: $(VENV)/lab            ## train GGR and its rivals on the embedded digits; print the table and the report's path
	$(BIN)/rewire sweep demo

test: lint types check docs  ## everything that must hold

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

check: $(VENV)/dev $(VENV)/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # one thread each: two workers share the cores

docs: $(VENV)/dev            ## the documentation site, warnings as errors; opens from build/docs/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# Leaks are left out: Python itself never frees everything. The libraries are built apart and found by REWIRE_LIBRARIES.
sanitize: $(VENV)/dev        ## the kernel tests under the address and undefined-behaviour sanitizers
	$(BIN)/python -m rewire.kernels.build --sanitize build/sanitized
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	REWIRE_LIBRARIES=build/sanitized $(BIN)/python -m pytest tests/kernels -k "native or fuzz" -p no:xdist

bench: $(VENV)/bench         ## speed and memory as ratios; writes benchmarks/results/
	$(BIN)/python -m benchmarks

zoo: $(VENV)/dev             ## everything with every architecture; writes docs/models-tried.md
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.zoo docs/models-tried.md

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# One stamp per set of extras; editing what they depend on installs them anew.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/lab: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(PIP) -e ".[lab]"
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	@touch $@

# One test opens the report in a real browser; where none can be installed it is skipped and says so.
$(VENV)/browser: | $(VENV)/bin/python
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null 2>&1 || \
	    echo "no chromium and no way to install it: the browser test will be skipped"
	@touch $@

# Peers that are measured against, each left out where it cannot be installed. rigl-torch asks for torchvision, which it
# does not use. sparseprop is compiled here, with the pybind11 of the python3 that it finds on the path.
$(VENV)/bench: $(VENV)/dev
	$(PIP) --no-deps rigl-torch==0.5.2
	$(PIP) pybind11 setuptools
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation sparseprop==0.1.14 || \
	    echo "sparseprop cannot be built here: the packed store is not compared with it"
	@touch $@
