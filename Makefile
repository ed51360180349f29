# hf-parity. `make help` says what there is. Needs make, a POSIX shell and Python 3.11 or later; what a target does is a
# program, parity_tests/jobs/make.py.

BASELINE ?= fixtures/baseline.txt
TRANSFORMERS ?=
JOBS ?=
PYTHON ?=
OFFLINE ?=
N ?=
NAME ?=
LIKE ?= llama
ARGS ?=
export BASELINE TRANSFORMERS JOBS PYTHON OFFLINE N NAME LIKE ARGS

TARGETS = parity test real fetch gpu facts rows known flags fuzz doctor family lint environment clean help
.PHONY: $(TARGETS)
.DEFAULT_GOAL := parity

$(TARGETS):
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11 python .venv/bin/python; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	        exec "$$python" -m parity_tests.jobs.make $@; fi; \
	done; echo 'hf-parity: Python 3.11 or later is needed, and there is none on PATH.' >&2; exit 1
