"""The wheel, as people have it who install it: in an environment without this checkout, called from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from parity_tests.jobs import CHECKOUT
from parity_tests.jobs.environments import Environment

pytestmark = pytest.mark.checkout

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def left_in_checkout() -> set[str]:
    """What lies at its top, and what git does not know."""
    untracked = subprocess.run(["git", "status", "--porcelain"], cwd=CHECKOUT, capture_output=True, text=True).stdout
    return {path.name for path in CHECKOUT.iterdir()} | set(untracked.splitlines())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, in which nothing may be left."""
    folder, before = tmp_path_factory.mktemp("wheel"), left_in_checkout()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(CHECKOUT)], check=True)
    assert left_in_checkout() == before
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def call(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Programs of an environment that has the wheel, and the packages that it needs from ours, in a folder of a user's own."""
    folder = tmp_path_factory.mktemp("user")
    env = Environment(folder / "env")
    venv.create(env.folder)
    ours = [path for path in sys.path if path and Path(path).name == "site-packages"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(env.packages)]
    subprocess.run([*install, str(wheel)], check=True)
    (env.packages / "ours.pth").write_text("\n".join(ours))
    script = env.folder / "bin/hf-parity"
    load = "from importlib.metadata import entry_points\nrun = entry_points(group='console_scripts')['hf-parity'].load()"
    script.write_text(f"#!{env.python}\nimport sys\n{load}\nsys.exit(run())\n")
    script.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "COV_"))}
    variables["PATH"] = f"{env.folder / 'bin'}{os.pathsep}{variables['PATH']}"

    def run(*command: str, cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=cwd, env={**variables, "JOBS": "1"}, capture_output=True, text=True)

    return run


def test_the_wheel_holds_the_packages_and_no_generic_name(wheel: Path) -> None:
    files = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {
        "reference_impl",
        "weight_mapping",
        "parity_tests",
    }
    found = [path.relative_to(CHECKOUT) for path in CHECKOUT.glob("fixtures/**/*") if "__pycache__" not in path.parts]
    there = {path.as_posix() for path in found if path.suffix}
    assert {f"parity_tests/{name}" for name in there} <= set(files)


def test_its_packages_come_from_the_wheel(call: Call) -> None:
    code = "import parity_tests, weight_mapping; print(parity_tests.__file__); print(weight_mapping.__file__)"
    places = call("python", "-c", code).stdout.split()
    assert len(places) == 2
    assert not any(Path(place).is_relative_to(CHECKOUT) for place in places)


def test_a_family_is_verified_from_any_folder(call: Call) -> None:
    ran = call("hf-parity", "parity", "--family", "fnet", "--precision", "f64", "-k", "base")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "fnet" in ran.stdout
    assert "sites agree" in ran.stdout


def test_pytest_takes_the_options_where_these_tests_are_asked_for(call: Call) -> None:
    choice = ("--pyargs", "parity_tests", "-q", "-p", "no:cacheprovider", "--precision", "f64", "-k", "fnet and base and ffn")
    ran = call("python", "-m", "pytest", *choice)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "fnet" in ran.stdout


def test_other_projects_are_left_alone(call: Call, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--family')\n")
    (tmp_path / "test_theirs.py").write_text("def test(request):\n    assert request.config.getoption('family') == 'theirs'\n")
    ran = call("python", "-m", "pytest", "-q", "--family", "theirs", str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "parity" not in ran.stdout
