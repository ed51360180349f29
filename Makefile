# hf-parity. `make help` says what there is. Needs GNU make 3.81 or later, a POSIX shell and Python 3.11 or later.

SHELL := /bin/sh
BASELINE ?= fixtures/baseline.txt
JOBS ?= 2
PYTHON ?=
OFFLINE ?=
ARGS ?=

# Without PYTHON the project keeps its own .venv. With it, the environment is the user's and nothing is installed.
gpu: PYTHON := $(or $(PYTHON),python)
RUN = $(if $(PYTHON),"$(PYTHON)",.venv/bin/python)

.PHONY: parity test real gpu lint clean help environment
.DEFAULT_GOAL := parity

parity real gpu: environment
	@$(RUN) -m parity_tests $@ $(ARGS)

# Everything runs even when something fails. pytest comes last: its summary is the closing line.
test: environment
	@$(if $(filter-out 0,$(OFFLINE)),,$(RUN) -m parity_tests fetch smollm2)
	@failed=0; $(LINT); $(RUN) -m pytest -n $(JOBS) $(ARGS) || failed=1; exit $$failed

lint: environment
	@failed=0; $(LINT); exit $$failed

LINT = $(RUN) -m ruff check . || failed=1; \
	$(RUN) -m pyright --pythonpath "$$($(RUN) -c 'import sys; print(sys.executable)')" || failed=1

clean:
	rm -rf parity-report .pytest_cache .ruff_cache build *.egg-info
	find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
	[ ! -f .venv/hf-parity.stamp ] || rm -rf .venv

help:
	@echo 'make parity   verify the installed transformers, print the verdict, write parity-report/report.json'
	@echo 'make test     everything: parity, the trained checkpoint, mapping, harness, tests of the tests, lint, types'
	@echo 'make real     verify a trained checkpoint, fetched when it is not here'
	@echo 'make gpu      as parity, on CUDA, in the active environment'
	@echo 'make lint     ruff and pyright'
	@echo 'make clean    remove reports, caches and the .venv made here'
	@echo
	@echo 'PYTHON=python     use the active environment and install nothing (otherwise .venv, made when there is none)'
	@echo 'BASELINE=my.txt   other versions in .venv than those of fixtures/baseline.txt'
	@echo 'OFFLINE=1         test without fetching the trained checkpoint'
	@echo 'JOBS=2            how many processes make test uses'
	@echo 'ARGS="..."        further arguments for the command, or for pytest'

environment:
	@eval "$$COMMON"; eval "$$$(if $(PYTHON),CHECK,SETUP)"

export BASELINE COMMON CHECK SETUP

define COMMON
fail() { echo "hf-parity: $$1" >&2; exit 1; }
new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }
endef

# The user's environment: is everything there? What lint and test need besides is asked of them alone.
define CHECK
new_enough "$(PYTHON)" || fail 'Python 3.11 or later is needed, and PYTHON=$(PYTHON) is not one that runs.'
"$(PYTHON)" - "$(PYTHON)" $(MAKECMDGOALS) << 'end'
import re
import shlex
import sys
import tomllib
from importlib.metadata import distributions

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = project["dependencies"]
if {"lint", "test"} & set(sys.argv[2:]):
    wanted += project["optional-dependencies"]["dev"]
here = {re.sub("[-_.]+", "-", each.name).lower() for each in distributions() if each.name}
missing = {name: each for each in wanted if (name := re.split(r"[<>=\[]", each)[0]) not in here}
if missing:
    pip = shlex.join([sys.argv[1], "-m", "pip", "install", *missing.values()])
    sys.exit(f"hf-parity: {sys.argv[1]} has no {', '.join(missing)}; to install: {pip}")
end
endef

# Our own .venv. The stamp says which versions it holds, by their content, or that an installation has begun.
define SETUP
stamp=.venv/hf-parity.stamp
log=.venv/hf-parity.log
[ -r "$$BASELINE" ] || fail "there is no file $$BASELINE to take the versions from."
wanted=$$(cat "$$BASELINE" pyproject.toml | cksum)
found=$$(cat $$stamp 2> /dev/null)
case $$found in "installing in "*)
    ! kill -0 "$${found##* }" 2> /dev/null || fail "process $${found##* } is installing into .venv: wait for it."
    echo 'an installation into .venv was interrupted: making it anew'
    rm -rf .venv
esac

if ! .venv/bin/python -c '' 2> /dev/null; then
    for python in python3 python3.14 python3.13 python3.12 python3.11 python ''; do
        ! new_enough "$$python" || break
    done
    [ "$$python" ] || fail 'Python 3.11 or later is needed, and there is none on PATH.'
    "$$python" -c 'import ensurepip, venv' 2> /dev/null ||
        fail "$$python lacks venv or ensurepip: install them (on Debian the package python3-venv)."
    rm -rf .venv
    found=
    mkdir .venv && echo "installing in $$$$" > $$stamp && "$$python" -m venv .venv || fail '.venv cannot be made.'
fi
[ "$$found" != "$$wanted" ] || exit 0

new_enough .venv/bin/python || fail 'the Python in .venv is older than 3.11: remove .venv and call again.'
.venv/bin/python -c 'import pip' 2> /dev/null || .venv/bin/python -m ensurepip > /dev/null || fail '.venv has no pip.'
echo "installing $$BASELINE into .venv"
trap 'exit 130' HUP INT TERM
echo "installing in $$$$" > $$stamp
{ .venv/bin/python -m pip install --no-input --disable-pip-version-check -r "$$BASELINE" 2>&1 || echo failed; } |
tee $$log |
while IFS= read -r line; do
    case $$line in
        *"Downloading "*" MB)"*) echo "  $${line##*Downloading }" ;;
        "Installing collected packages"*) echo '  unpacking'; begun=yes ;;
        failed) [ "$$begun" ] || echo "$$found" > $$stamp; exit 1 ;;
    esac
done || {
    sed -n '/^failed$$/d; /^ *[Ee][Rr][Rr][Oo][Rr]/,$$p' $$log >&2
    fail "pip cannot install $$BASELINE into .venv (all that it said: $$log)."
}
echo "$$wanted" > $$stamp
endef
