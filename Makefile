# make demo    train, evaluate and draw a small potential (in demo-output/)
# make test    the test suite
# make lint    ruff, mypy and the import contracts
# make fuzz    thousands of damaged and hostile files, which must be refused in plain words (minutes)
# make docs    the documentation as a site in .site
# make bench   speed beside MACE, NequIP and apax, which it installs in .bench (idle machine, minutes)
# make bench-all   the same with all sizes, the published formulation, memory and start (an hour)
# make bench-accuracy   errors after equal training time beside MACE and NequIP (hours)
# make wheel   a wheel with the kernels of the presets inside, in dist/ (Linux, x86-64)
# make soak    kills, full disks, threads and long runs (hours; SOAK=--short takes minutes)
# make clean   remove caches and outputs; distclean removes .venv too
#
# The first target that needs it makes .venv and installs bayrace there.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
BENCH ?= .bench
BENCH_DATA ?= ../shared/data
export BENCH

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMPS := .venv/.stamps

.PHONY: demo test lint docs fuzz soak wheel bench bench-all bench-accuracy clean distclean
.DELETE_ON_ERROR:

demo: $(STAMPS)/run
	$(BIN)/bayrace demo --output demo-output

test: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

soak: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python soak/run.py $(SOAK)

fuzz: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python fuzz/run.py $(FUZZ)

# The kernels are built into the source tree and leave it again.
wheel: $(STAMPS)/dev
	$(BIN)/python scripts/build_kernels.py
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	rm -rf src/bayrace/nn/prebuilt

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

PEERS := $(BENCH)/mace/.stamp $(BENCH)/nequip/.stamp $(BENCH)/apax/.stamp

bench: $(STAMPS)/dev $(PEERS) $(BENCH)/data/.stamp
	$(BIN)/python benchmarks/peers/speed.py --short --keep-memory --threads 1
	$(BIN)/python benchmarks/threads.py --data $(BENCH)/data/3bpa/train.xyz
	$(BIN)/python benchmarks/shares.py --data $(BENCH)/data/3bpa/train.xyz

bench-all: $(STAMPS)/dev $(PEERS) $(BENCH)/data/.stamp
	$(BIN)/python benchmarks/peers/e3nn_race.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers/counts.py
	$(BIN)/python benchmarks/peers/speed.py

bench-accuracy: $(STAMPS)/dev $(BENCH)/mace/.stamp $(BENCH)/nequip/.stamp $(BENCH)/data/.stamp
	$(BIN)/python benchmarks/peers/accuracy.py --minutes 10 30

clean:
	rm -rf demo-output build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv

# torch first and alone: a later resolution would be free to replace its build.
$(STAMPS)/torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: $(STAMPS)/torch pyproject.toml
	$(PIP) -c constraints.txt -e .
	touch $@

$(STAMPS)/dev: $(STAMPS)/torch pyproject.toml
	$(PIP) -c constraints.txt -e '.[dev,engines]'
	touch $@ $(STAMPS)/run

$(STAMPS)/docs: $(STAMPS)/run
	$(PIP) -c constraints.txt -e '.[docs]'
	touch $@

# The peers of the benchmarks, each in an environment of its own, with our torch.
$(BENCH)/torch.txt: constraints.txt
	mkdir -p $(BENCH)
	grep '^torch==' constraints.txt > $@

$(BENCH)/mace/.stamp: PEER := mace-torch==0.3.16
$(BENCH)/nequip/.stamp: PEER := nequip==0.19.1
$(BENCH)/mace/.stamp $(BENCH)/nequip/.stamp: $(BENCH)/torch.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $< $(PEER)
	touch $@

# apax computes with JAX and has no torch.
$(BENCH)/apax/.stamp:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check apax==0.14.0
	touch $@

$(BENCH)/data/.stamp: benchmarks/peers/data.py | $(STAMPS)/dev
	test -d $(BENCH_DATA) || { echo "$(BENCH_DATA): no data; give BENCH_DATA=folder"; exit 1; }
	$(BIN)/python benchmarks/peers/data.py $(BENCH_DATA) $(BENCH)/data
	touch $@
