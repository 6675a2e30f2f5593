# make book | make test | make run: each sets up what it needs. `make help` lists the rest.
PYTHON ?= python3
EDITION ?=
NOTEBOOK ?=
PORT ?= 8765

# The tier of this machine: hopper from compute capability 9.0 on, gpu where there is another NVIDIA GPU, else cpu.
# `cluster` is asked for, and so is `gpu` on ROCm: make run TIER=cluster
CAPABILITY := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1)
TIER ?= $(if $(CAPABILITY),$(shell [ $(CAPABILITY) -ge 9 ] && echo hopper || echo gpu),cpu)
TIERS := $(patsubst environments/%/tier.yml,%,$(wildcard environments/*/tier.yml))
ifneq (1 $(TIER),$(words $(TIER)) $(filter $(TIER),$(TIERS)))
$(error TIER=$(TIER): no such tier; known: $(TIERS))
endif

# What a user names is passed on as it was written, quotes and all.
quoted = '$(subst ','\'',$(1))'
IN_EDITION := $(if $(EDITION),--edition $(call quoted,$(EDITION)))
OF_NOTEBOOKS := $(foreach n,$(NOTEBOOK),--notebook $(call quoted,$(n)))

BOOK := .venv/book/bin/efficient-training
RUN := .venv/$(TIER)/bin/efficient-training
DEV := .venv/cpu/bin

# What an environment needs comes in order: its extensions are compiled by what it has installed.
.NOTPARALLEL:
.PHONY: help book serve env run reference status check tiers test portability soak bench system lock format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

.venv/%/.installed: environments/%/requirements.txt environments/%/post.txt environments/install.py pyproject.toml
	@$(PYTHON) environments/install.py $*

.venv/cpu/.installed-dev: environments/cpu/requirements.txt environments/cpu/post.txt environments/dev/requirements.txt environments/install.py pyproject.toml
	@$(PYTHON) environments/install.py cpu --dev

# DeepSpeed's extensions, compiled once. What cannot be built here is said, and the experiments that need it say so too.
.venv/%/.native: environments/%/requirements.txt environments/%/post.txt
	@.venv/$*/bin/python -m efficient_training.native
	@touch $@

book: .venv/book/.installed  ## render the book and print its path; EDITION=
	@$(BOOK) render $(IN_EDITION)

serve: .venv/book/.installed  ## render the book and serve it on this machine; EDITION=, PORT=
	@$(BOOK) serve --port $(call quoted,$(PORT)) $(IN_EDITION)

env: .venv/$(TIER)/.installed  ## make the environment .venv/<tier>, in which the book's commands are; TIER=

run: .venv/$(TIER)/.installed .venv/$(TIER)/.native  ## execute the notebooks on this machine; TIER=, NOTEBOOK=, EDITION=
	@$(RUN) execute --tier $(TIER) $(OF_NOTEBOOKS) $(IN_EDITION)

reference: .venv/cpu/.installed .venv/cpu/.native  ## execute the notebooks in place: the committed reference edition; NOTEBOOK=
	@.venv/cpu/bin/efficient-training execute --reference $(OF_NOTEBOOKS)

status: .venv/book/.installed  ## which notebooks of an edition are fresh, stale or missing; EDITION=
	@$(BOOK) status $(IN_EDITION)

tiers: .venv/book/.installed  ## what this machine has, and which tiers it meets
	@$(if $(wildcard .venv/$(TIER)/.installed),$(RUN),$(BOOK)) tiers

check: .venv/cpu/.installed-dev  ## what CI asks of the sources: formatting, types, spelling, the book's own rules
	$(DEV)/ruff check .
	$(DEV)/ruff format --check .
	$(DEV)/mypy
	$(DEV)/codespell
	$(DEV)/efficient-training check

test: check .venv/cpu/.native book  ## every check that CI runs
	$(DEV)/python -m pytest
	$(DEV)/python -m pytest --nbval --nbval-current-env notebooks

portability: .venv/cpu/.installed-dev .venv/cpu/.native  ## the notebooks against the reference as another CPU and one thread would run them
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(DEV)/python -m pytest --nbval --nbval-current-env notebooks
	ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(DEV)/python -m pytest --nbval --nbval-current-env notebooks
	ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
		$(DEV)/python -m pytest --nbval --nbval-current-env notebooks

soak: .venv/cpu/.installed-dev .venv/cpu/.native  ## the random and repeated tests at full length, about an hour
	SOAK=1 $(DEV)/python -m pytest -q tests/price tests/test_trace.py tests/launch/test_restarts.py

bench: .venv/cpu/.installed-dev .venv/cpu/.native  ## performance against peers, as ratios within one run
	$(DEV)/python benchmarks/price_rate.py
	$(DEV)/python benchmarks/against_trainer.py
	$(DEV)/python benchmarks/sharded_loops.py
	$(DEV)/python benchmarks/packing_rate.py

system:  ## install the optional system packages (Chromium, SLURM, libaio), where apt and root are there
	@sh environments/system.sh

format: .venv/cpu/.installed-dev  ## format the sources, notebooks included
	$(DEV)/ruff check --fix .
	$(DEV)/ruff format .

lock: .venv/cpu/.installed-dev  ## compile the requirements again
	@environments/lock.sh $(DEV)/uv

clean:  ## remove what was rendered and installed; editions in results/ stay
	rm -f .venv/*/.installed* .venv/*/.native
	rm -rf _book _build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
