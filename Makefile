# make run: the example and the benchmark.  make test: lint, types, tests.  make quick: most of them.  make test-more: further cases of the same
# tests.  make test-torch TORCH=torch==2.15.0 VENV=.venv-2.15: what imports torch, with another one, in an environment of its own.
# make test-torch-suite, test-frameworks, test-keras, test-jax: more of them, about torch, other frameworks, Keras, JAX's collectives.  make test-verbs: RDMA, in a virtual machine.
# make test-gpu: CUDA kernels.  make sanitize: the library under the sanitizers.  make fuzz: random calls, random deaths.
# make mutants: does the suite notice when the code is wrong?
# make kills: a parameter server through 1,000 deaths.
# make chaos: jobs that outlive their ranks, through 1,000 deaths, stops and pulled cables.
# make compare: beside Gloo and the MPIs, with targets.  make wheel, docs: a wheel, the site.
# All in .venv, made when first needed.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Modules become bytecode when they are first imported: of what is installed, few ever are.
INSTALL := $(PIP) install --quiet --no-compile
# pip says nothing of what it compiles, so that is compiled before, by what pyproject.toml requires.
BUILD := 'setuptools>=77' 'cython>=3.1' 'numpy>=2.0'
EDITABLE := $(INSTALL) --no-build-isolation --editable
define COMPILE
@echo "compiling hocket, where build/cache does not have it"
$(INSTALL) $(BUILD)
$(BIN)/python setup.py --quiet build_ext --inplace
endef
PLOT := build/allreduce.png
TRACE := build/training.pftrace.gz
PAGE := build/training.html
IMPI := build/impi
# What an editable install compiles; .py files need no reinstall.
SOURCES := setup.py pyproject.toml $(shell find system kernels transports collectives frameworks -name "*.p[yx][xd]" -o -name "*.h")

PYTEST := $(BIN)/pytest

# A test run starts thousands of processes with the same modules: their bytecode is kept, whatever the caller prefers.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test quick lint test-more test-pythons test-newest test-torch test-torch-suite test-frameworks test-keras test-jax test-horovod-suite test-ray-suite test-torch-files orders test-torchft-suite \
	test-verbs test-gpu test-browser test-litmus test-aarch64 sanitize mutants fuzz kills chaos chaos-long compare wheel docs clean

run: $(VENV)/run.stamp
	@mkdir -p build
	@rm -rf $(TRACE).parts
	$(BIN)/hocket run --trace $(TRACE) -n 4 -- examples/digits.py
	$(BIN)/hocket report $(TRACE) -o $(PAGE) > /dev/null
	$(BIN)/hocket bench allreduce -n 4 -b 8 -e 64M -f 2 --plot $(PLOT)
	@echo "the plot is $(PLOT), and the page on where the training's time went $(PAGE)"

# Lint and types run beside the tests; what they find is printed behind.
BESIDE_LINT = $(BIN)/ruff check . || exit; $(BIN)/mypy > build/mypy.txt 2>&1 & lint=$$!; \
	$(PYTEST) $(1); tests=$$?; wait $$lint || tests=1; cat build/mypy.txt; exit $$tests

test: $(VENV)/test.stamp | $(IMPI)
	@$(call BESIDE_LINT,--workers 4 --record --durations 20)

# What one runs after a change: two minutes, of which most go to types after a change of many modules.
quick: $(VENV)/test.stamp
	@$(call BESIDE_LINT,--workers 2 --quick)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy

# What `make test` leaves out, as others show nearly as much (other sizes, transports, MPIs and examples), and 10^6 schedules
# of the decree: half an hour.  As root on Debian it installs Slurm where that is not here.
test-more: $(VENV)/test.stamp | $(IMPI)
	@test -d /usr/share/datasets/fashion-mnist || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq dataset-fashion-mnist > /dev/null
	@command -v slurmctld > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge > /dev/null
	$(PYTEST) -m more --workers 4 --durations 20

# The core's tests on other CPythons, those of PYTHONS that are here; as root python3.14 comes from Debian sid where debootstrap
# is installed.  A quarter of an hour each.
PYTHONS ?= python3.10 python3.12 python3.13 python3.14
test-pythons:
	tests/support/pythons.sh $(PYTHONS)

# What a user gets who installs today: the newest of everything, in an environment for each of STACKS, on NEWEST_PYTHON.
# 12 GB in build/newest, an hour.  docs/frameworks.md has the table.
NEWEST_PYTHON ?= python3.13
STACKS ?= core torch training jax clusters trees
test-newest:
	tests/support/newest.sh $(NEWEST_PYTHON) $(STACKS)

# Every test that imports torch.  With TORCH=torch==2.15.0 VENV=.venv-2.15: on that one, in an environment of its own.
test-torch: $(VENV)/test.stamp
	@$(BIN)/python -c "import torch; print('torch', torch.__version__)"
	$(PYTEST) --torch --workers 2

# torch's own suite at 2, 3 and 4 ranks, and twelve elastic restarts: 8 minutes.
test-torch-suite: $(VENV)/test.stamp
	TORCH_SUITE_SIZES=2,3,4 TORCH_RESTARTS=12 $(PYTEST) -m more \
		tests/frameworks/torch/test_suite.py tests/frameworks/torch/test_restarts.py

# Lightning, accelerate, transformers' Trainer, DeepSpeed, torchft, Ray, Dask, Spark (which needs Java), JAX, LightGBM,
# XGBoost and Flower on hocket; they are large, so `make test` does without.
test-frameworks: $(VENV)/test.stamp
	$(EDITABLE) '.[frameworks]'
	$(PYTEST) tests/frameworks/others

# Keras 3 on TensorFlow, JAX and torch: each backend in an environment of its own, of 1.6, 0.7 and 1.1 GB.
# With HOROVOD_EXAMPLES, Horovod's examples/tensorflow2, which is not here, its four programs too; with HOROVOD_PARALLEL, its
# test/parallel, its tests for TensorFlow on CPUs, but for those in NOT_HERE (docs/keras.md).  25 minutes.
KERAS := keras==3.15.1
KERAS_tensorflow := tensorflow-cpu==2.21.0
KERAS_jax := jax==0.10.2
KERAS_torch := torch==2.13.0
BACKENDS ?= tensorflow jax torch
ERRORS := allgather_error or allreduce_error or broadcast_error or reducescatter_error or length_error or rank_error or splits_error
NOT_HERE := gpu or elastic or syncbn or model_parallel or partial_distributed or type_error or $(ERRORS)
test-keras: $(patsubst %,.venv-keras-%/test.stamp,$(BACKENDS))
	for each in $(BACKENDS); do \
		KERAS_BACKEND=$$each .venv-keras-$$each/bin/pytest tests/frameworks/keras || exit 1; done
	@[ -z "$(HOROVOD_EXAMPLES)" ] || for each in 2 3; do .venv-keras-tensorflow/bin/python \
		tests/frameworks/keras/horovod_examples.py $(HOROVOD_EXAMPLES) --keras $$each || exit 1; done
	@[ -z "$(HOROVOD_PARALLEL)" ] || .venv-keras-tensorflow/bin/python \
		tests/frameworks/horovod/suite.py $(HOROVOD_PARALLEL)/test_tensorflow.py -n 2 -k "not ($(NOT_HERE))"

# tf-keras asks for tensorflow itself, which would come over tensorflow-cpu.
.venv-keras-%/test.stamp: $(SOURCES)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile $(BUILD) cloudpickle pytest pytest-timeout $(KERAS) $(KERAS_$*)
	[ $* != tensorflow ] || $(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-deps tf-keras==2.21.0
	$(@D)/bin/python setup.py --quiet build_ext --inplace
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-build-isolation --no-deps --editable .
	@touch $@

# JAX's own collectives on hocket, with each of JAX_VERSIONS in an environment of its own on JAX_PYTHON (3.12 or newer), of 0.7 GB;
# with JAX_TESTS, tests/multiprocess of a checkout of jax-ml/jax, which is not here, those on hocket and on Gloo: half an hour each.
JAX_PYTHON ?= python3.13
JAX_VERSIONS ?= 0.10.2 0.12.0.1
test-jax: $(patsubst %,.venv-jax-%/test.stamp,$(JAX_VERSIONS))
	for each in $(JAX_VERSIONS); do \
		.venv-jax-$$each/bin/pytest tests/frameworks/others/test_jax_psum.py || exit 1; \
		[ -z "$(JAX_TESTS)" ] || .venv-jax-$$each/bin/python tests/frameworks/suites/jax_files.py $(JAX_TESTS) || exit 1; done

.venv-jax-%/test.stamp: $(SOURCES)
	$(JAX_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile $(BUILD) absl-py cloudpickle portpicker pytest pytest-timeout jax==$*
	$(@D)/bin/python setup.py --quiet build_ext --inplace
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-build-isolation --no-deps --editable .
	@touch $@

# Horovod's own tests for torch at 2 and 3 ranks: HOROVOD_TESTS is its test/parallel/test_torch.py, which is not here.
test-horovod-suite: $(VENV)/test.stamp
	$(BIN)/python tests/frameworks/horovod/suite.py $(HOROVOD_TESTS) -n 2 --again
	$(BIN)/python tests/frameworks/horovod/suite.py $(HOROVOD_TESTS) -n 3 -k "not prescale"

# torch's own files, which are not here, on hocket and on Gloo, compared test by test: TORCH_TESTS is test/distributed of a
# checkout of pytorch/pytorch.  Half an hour.
TORCH_FILES = algorithms/test_join.py test_c10d_object_collectives.py optim tensor/parallel pipelining checkpoint
test-torch-files: $(VENV)/test.stamp
	$(BIN)/python tests/frameworks/suites/driver.py torch $(addprefix $(TORCH_TESTS)/,$(TORCH_FILES))

# torchft's own tests, which it installs, likewise; those of groups that are reconfigured from 2026.10 on, with torch 2.14 and later
# (TORCH=torch==2.15.0 VENV=.venv-2.15).  TORCHFT=torchft==0.2.0: the release.
TORCHFT ?= torchft-nightly
test-torchft-suite: $(VENV)/test.stamp
	$(PIP) uninstall --quiet --yes torchft torchft-nightly
	$(INSTALL) parameterized '$(TORCHFT)'
	$(BIN)/python tests/frameworks/suites/driver.py torchft process_group_test.py local_sgd_test.py \
		$(if $(findstring nightly,$(TORCHFT)),reconfigure_test.py) --limit 600

# Ray's own tests of its collective groups, with hocket's name in place of Gloo's.  They are no part of this repository:
# RAY_SUITE is the path of python/ray/util/collective/tests in a checkout of ray-project/ray.
test-ray-suite: $(VENV)/test.stamp
	$(EDITABLE) '.[ray]'
	$(BIN)/python tests/frameworks/others/ray_suite/driver.py $(RAY_SUITE) --nodes 1
	$(BIN)/python tests/frameworks/others/ray_suite/driver.py $(RAY_SUITE) --nodes 2

# RDMA verbs, and TCP through a bad network, in a virtual machine that has Soft-RoCE devices: ten minutes where it is
# emulated.  Debian on x86-64; what the machine lacks (QEMU, the kernel, perftest) is fetched into a cache, never installed.
# Beside hocket's numbers perftest's and pyverbs': tests/guest/run.sh .venv/bin/python -m hocket.lab.verbs
test-verbs: $(VENV)/test.stamp
	GUEST_TESTS=1 $(PYTEST) tests/test_guest.py
	GUEST_TIMEOUT=1800 tests/guest/run.sh $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider --durations 10 tests/guest

# Every CUDA kernel by emulation, under sanitizers and compiled for five architectures, and the check of a GPU on stand-ins:
# four minutes.  (Collectives on GPU arrays, over the stand-ins, are part of `make test`.)
test-gpu: $(VENV)/test.stamp
	$(EDITABLE) '.[test-gpu]'
	$(PYTEST) -m gpu

# Reports and traces in Chromium: axe-core on the page, light and dark; Perfetto's own UI on traces, of 8 million slices
# too.  Five minutes.  Debian's chromium is wanted.
test-browser: $(VENV)/test.stamp
	$(EDITABLE) '.[test-browser]'
	$(PYTEST) -m browser tests/observe

# The order of memory: each litmus program of tests/litmus under herd7's models of C11 and ARMv8, and with each order weakened:
# a minute.  herd7 is what HERD7 names, or the PATH has, or is built into build/herd7 from its source: four minutes, with
# Debian's dune, menhir, ocaml and libzarith-ocaml-dev.
test-litmus: $(VENV)/test.stamp
	tests/litmus/herd.sh
	$(PYTEST) -m litmus tests/litmus

# hocket on an emulated aarch64: the bits of its kernels beside this machine's, then the core's tests, or those that TESTS names.
# As root; Debian's debootstrap, gcc-aarch64-linux-gnu and qemu-user-static.  It makes 500 MB in build/aarch64.
test-aarch64: $(VENV)/test.stamp
	tests/support/aarch64.sh

# The C protocols, whole and with each line broken, then the whole library, under ASan, UBSan and TSan: some minutes.
sanitize: $(VENV)/test.stamp
	$(PYTEST) -m sanitize
	PYTHON=$(CURDIR)/$(BIN)/python tests/sanitize/run.sh

# Random programs against NumPy, then ranks killed and stopped at random moments: ten minutes each; damaged files of somebody
# else's, frames, words, seats and snapshots: a minute each.  Each time other ones, unless SEED is given; what fails is printed
# with the command that repeats it.  As root also over two hosts.
SEED ?= $(shell date +%s)
fuzz: $(VENV)/test.stamp
	$(BIN)/python -m hocket.conformance.fuzz --seconds 600 --seed $(SEED)
	$(BIN)/python -m hocket.conformance.chaos --seconds 600 --seed $(SEED)
	for each in files frames words seats snapshots; do \
		PYTHONPATH=tests $(BIN)/python -m support.hostile --of $$each --seconds 60 --seed $(SEED) || exit 1; done

# N mutants of the library's own code, that SEED draws, against the tests that reach them: half an hour at most.  The first
# time it measures which tests reach which lines, into build/reach, which takes longer; remove that after large changes.
N ?= 120
mutants: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python -m support.mutants --seed $(SEED) --count $(N)

# 10^5 steps of schedulers of gradients, in random orders, with kills: half an hour.
orders: $(VENV)/test.stamp
	$(BIN)/python -m hocket.conformance.orders --seed $(SEED)

# A parameter server whose servers and workers are killed 1,000 times in 10^5 pushes: nothing is lost or counted twice.
kills: $(VENV)/test.stamp
	$(BIN)/python -m hocket.conformance.kills --seed $(SEED)
	$(BIN)/python -m hocket.conformance.kills --seed $(SEED) --pushes 30000 --kills 300 --module

# Elastic jobs whose members are killed, stopped, cut off and replaced, on hosts that are network namespaces (as root):
# 1,000 events in a quarter of an hour, 20,000 in five hours.
chaos: $(VENV)/test.stamp
	$(BIN)/python -m hocket.conformance.survive --seconds 3600 --events 1000 --jobs 4 --seed $(SEED)

chaos-long: $(VENV)/test.stamp
	$(BIN)/python -m hocket.conformance.survive --seconds 86400 --events 20000 --jobs 4 --seed $(SEED)

# hocket beside Gloo, Open MPI, MPICH, Intel MPI (in a prefix of its own: its libraries have MPICH's names) and the
# machine itself, line by line with its targets; the table goes into bench/results/compare.md, into the section of this
# kind of CPU, and the picture into README.md.  Then messages, starting, and training on shared cores.  Fifteen minutes, on a
# machine that does nothing else.
compare: $(VENV)/test.stamp | $(IMPI)
	$(BIN)/python -m hocket.bench.compare --others --json bench/results --plot docs/compare.svg --page bench/results/compare.md \
		--peers gloo,openmpi,openmpi-single,mpich,mpich-single,impi=build/impi,impi-single=build/impi

# build/dist: the source, and a wheel made of it; build/wheels: the wheel with the tag of the oldest Linux that can use it,
# which auditwheel finds, tried in an environment of its own.  For an older Linux: cibuildwheel (pyproject.toml).
wheel: $(VENV)/test.stamp
	$(EDITABLE) '.[wheel]'
	rm -rf build/dist build/wheels
	$(BIN)/python -m build --outdir build/dist
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m auditwheel repair --wheel-dir build/wheels build/dist/*.whl
	$(PYTEST) -m wheel tests/tools/test_wheel.py

# The site, with the reference from the docstrings, into build/docs.  Warnings are errors.
docs: $(VENV)/test.stamp
	$(BIN)/python docs/floors.py
	$(BIN)/python docs/pictures.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs . build/docs
	@echo "the site is build/docs/README.html"

clean:
	rm -rf .venv .venv-* build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find algorithms bench collectives compressors conformance control examples frameworks kernels lab observe system tests tools training transports \
		-name '*.so' -o -name __pycache__ | xargs rm -rf

# Intel MPI lives apart: its libraries have MPICH's names.  It exists for x86-64 only.
$(IMPI):
	$(PYTHON) -m venv $@
	[ "$$(uname -m)" != x86_64 ] || $@/bin/python -m pip --disable-pip-version-check install --quiet --no-compile impi-rt

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(SOURCES) | $(VENV)/bin/python
	$(COMPILE)
	$(EDITABLE) '.[run]'
	@touch $@

# torch first, so that nothing else decides its version; any torch will do where this one is not to be had, unless it was asked for.
$(VENV)/test.stamp: $(SOURCES) | $(VENV)/bin/python
	$(INSTALL) '$(TORCH)' $(if $(filter command,$(origin TORCH)),,|| $(INSTALL) torch)
	$(COMPILE)
	$(EDITABLE) '.[test]'
	@touch $@ $(VENV)/run.stamp
