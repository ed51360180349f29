# hf-parity. `make help` says what there is. Needs GNU make 3.81 or later, a POSIX shell and Python 3.11 or later.

SHELL := /bin/sh
BASELINE ?= fixtures/baseline.txt
TRANSFORMERS ?=
JOBS ?= 2
PYTHON ?=
OFFLINE ?=
ARGS ?=

# Without PYTHON the project keeps its own .venv. With it, the environment is the user's and nothing is installed.
gpu: PYTHON := $(or $(PYTHON),python)
RUN = $(if $(PYTHON),"$(PYTHON)",$(ENV)/bin/python)

# With TRANSFORMERS=4.57.6 that release runs in an environment of its own, which takes all that it can from .venv.
ENV = .venv$(addprefix -transformers-,$(TRANSFORMERS))
REPORT = $(addprefix --report parity-report/transformers-,$(TRANSFORMERS))
ifneq ($(TRANSFORMERS),)
$(if $(PYTHON),$(error TRANSFORMERS sets up an environment of its own, and PYTHON names yours: give one of them))
$(foreach goal,$(filter-out parity real facts flags known environment,$(MAKECMDGOALS)),\
$(error TRANSFORMERS is for make parity, real, facts, flags and known, not for make $(goal)))
endif

.PHONY: parity test real gpu facts flags known rows fuzz doctor lint clean help environment
.DEFAULT_GOAL := parity

parity real gpu rows: environment
	@$(RUN) -m parity_tests $@ $(REPORT) $(ARGS)

fuzz: environment
	@$(RUN) -W ignore -m parity_tests fuzz $(N)

doctor: environment
	@$(RUN) -W ignore -m parity_tests doctor $(ARGS)

facts flags known: environment
	@$(RUN) -m parity_tests $@

# Everything runs even when something fails. pytest comes last: its summary is the closing line.
test: environment
	@$(if $(filter-out 0,$(OFFLINE)),,$(RUN) -m parity_tests fetch smollm2 minilm)
	@failed=0; $(LINT); $(RUN) -m pytest -n $(JOBS) --rows --trained $(ARGS) || failed=1; exit $$failed

lint: environment
	@failed=0; $(LINT); exit $$failed

LINT = $(RUN) -m ruff check . || failed=1; \
	$(RUN) -m pyright --pythonpath "$$($(RUN) -c 'import sys; print(sys.executable)')" || failed=1

clean:
	rm -rf parity-report .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
	for stamp in .venv*/hf-parity.stamp; do [ ! -f "$$stamp" ] || rm -rf "$${stamp%/*}"; done

help:
	@echo 'make parity   verify the installed transformers, print the verdict, write parity-report/report.json'
	@echo 'make test     everything: parity, trained checkpoints, mapping, harness, tests of the tests, lint, types'
	@echo 'make real     verify trained checkpoints, fetched when they are not here; ARGS=iglm: this one alone'
	@echo 'make gpu      as parity, on CUDA, in the active environment'
	@echo 'make facts    what the seed documents state about torch and transformers, and whether it is so'
	@echo 'make rows     every test, and which row of the seed documents it shows'
	@echo 'make known    what transformers is known to compute otherwise, and in which releases'
	@echo 'make flags    which fields of the configs of transformers the fixtures vary'
	@echo 'make fuzz     damaged checkpoints, each of which must load or be refused in one sentence; N=50000: so many'
	@echo 'make doctor   ARGS=path/to/model: is a trained checkpoint damaged in a way that parity cannot see?'
	@echo 'make lint     ruff and pyright'
	@echo 'make clean    remove reports, caches and the environments made here'
	@echo
	@echo 'PYTHON=python     use the active environment and install nothing (otherwise .venv, made when there is none)'
	@echo 'TRANSFORMERS=4.57.6  parity, real, facts, flags or known with that release, in an environment of its own beside .venv'
	@echo 'BASELINE=my.txt   other versions in .venv than those of fixtures/baseline.txt'
	@echo 'OFFLINE=1         test without fetching trained checkpoints'
	@echo 'JOBS=2            how many processes make test uses'
	@echo 'ARGS="..."        further arguments for the command, or for pytest'

environment:
	@eval "$$COMMON"; eval "$$$(if $(PYTHON),CHECK,SETUP)"

export BASELINE TRANSFORMERS COMMON CHECK SETUP

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

# Our own environments. A stamp says what one holds, by its content, or that an installation has begun.
define SETUP
alive() { # process: one that ended and that nobody has reaped, as in containers, is not
    kill -0 "$$1" 2> /dev/null && case $$(ps -o stat= -p "$$1" 2> /dev/null) in Z*) false ;; esac
}
examine() { # folder: what its stamp says, in $$found; one that an interrupted installation left is removed
    found=$$(cat "$$1/hf-parity.stamp" 2> /dev/null)
    case $$found in "installing in "*)
        ! alive "$${found##* }" || fail "process $${found##* } is installing into $$1: wait for it."
        echo "an installation into $$1 was interrupted: making it anew"
        rm -rf "$$1"
    esac
}
create() { # folder, python, venv's options
    found=
    rm -rf "$$1"
    mkdir "$$1" && echo "installing in $$$$" > "$$1/hf-parity.stamp" && "$$2" -m venv $$3 "$$1" ||
        fail "$$1 cannot be made."
}
install() { # folder, what it holds then, what to call that, pip's arguments
    folder=$$1 holds=$$2 name=$$3
    shift 3
    echo "installing $$name into $$folder"
    trap 'exit 130' HUP INT TERM
    echo "installing in $$$$" > "$$folder/hf-parity.stamp"
    { "$$folder/bin/python" -m pip install --no-input --disable-pip-version-check "$$@" 2>&1 || echo failed; } |
    tee "$$folder/hf-parity.log" |
    while IFS= read -r line; do
        case $$line in
            *"Downloading "*" MB)"*) echo "  $${line##*Downloading }" ;;
            "Installing collected packages"*) echo '  unpacking'; begun=yes ;;
            failed) [ "$$begun" ] || echo "$$found" > "$$folder/hf-parity.stamp"; exit 1 ;;
        esac
    done || {
        refused "$$folder/hf-parity.log"
        sed -n '/^failed$$/d; /^ *[Ee][Rr][Rr][Oo][Rr]/,$$p' "$$folder/hf-parity.log" >&2
        fail "pip cannot install $$name into $$folder (all that it said: $$folder/hf-parity.log)."
    }
    echo "$$holds" > "$$folder/hf-parity.stamp"
}
refused() { :; } # pip's log: says what is wrong where it is plain from that

case $$TRANSFORMERS in [!0-9]*|*[!0-9a-z.]*)
    fail "TRANSFORMERS=$$TRANSFORMERS is no version number such as 4.57.6." ;;
esac
[ -r "$$BASELINE" ] || fail "there is no file $$BASELINE to take the versions from."
wanted=$$(cat "$$BASELINE" pyproject.toml | cksum)
examine .venv
if ! .venv/bin/python -c '' 2> /dev/null; then
    for python in python3 python3.14 python3.13 python3.12 python3.11 python ''; do
        ! new_enough "$$python" || break
    done
    [ "$$python" ] || fail 'Python 3.11 or later is needed, and there is none on PATH.'
    "$$python" -c 'import ensurepip, venv' 2> /dev/null ||
        fail "$$python lacks venv or ensurepip: install them (on Debian the package python3-venv)."
    create .venv "$$python"
fi
if [ "$$found" != "$$wanted" ]; then
    new_enough .venv/bin/python || fail 'the Python in .venv is older than 3.11: remove .venv and call again.'
    .venv/bin/python -c 'import pip' 2> /dev/null || .venv/bin/python -m ensurepip > /dev/null || fail '.venv has no pip.'
    install .venv "$$wanted" "$$BASELINE" -r "$$BASELINE" -e . # with the options that pytest has to know early
fi
[ "$$TRANSFORMERS" ] || exit 0

# Another release. Its path goes on in .venv's packages, and in the checkout, as theirs does: what suits it there is used there, pip included, and pip installs
# what does not in front of them. It changes nothing outside of the environment that it runs in. Sound as long as .venv
# holds the same.
env=.venv-transformers-$$TRANSFORMERS
wanted="on $$(LC_ALL=C ls -d .venv/lib/python*/site-packages/*.dist-info | cksum)"
examine "$$env"
[ "$$found" != "$$wanted" ] || ! "$$env/bin/python" -c '' 2> /dev/null || exit 0
create "$$env" .venv/bin/python --without-pip
for packages in .venv/lib/python*/site-packages; do
    { echo "../../../../$$packages"; echo ../../../..; } > "$$env/$${packages#.venv/}/hf-parity.pth"
done
refused() {
    ! grep -q "No matching distribution found for transformers==" "$$1" || grep -q '(from versions: none)' "$$1" || {
        rm -rf "$$env"
        fail "there is no transformers $$TRANSFORMERS."
    }
}
install "$$env" "$$wanted" "transformers $$TRANSFORMERS" "transformers==$$TRANSFORMERS"
endef
