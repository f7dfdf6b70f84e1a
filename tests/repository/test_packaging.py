"""What is installed is what was promised: types and stubs, no sources."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import pytest

import memcfg

ROOT = Path(__file__).resolve().parents[2]
MOST = 6 * 2**20  # bytes of a wheel


@pytest.fixture(scope="module")
def wheel():
    try:
        found = distribution("memcfg")
    except PackageNotFoundError:
        pytest.skip("memcfg is imported from its sources")
    editable = "editable" in (found.read_text("direct_url.json") or "")
    if found.read_text("WHEEL") is None or editable:
        pytest.skip("memcfg is not installed from a wheel")
    return found


@pytest.fixture(scope="module")
def paths(wheel):
    return [PurePosixPath(str(path)) for path in wheel.files]


def test_the_version_is_the_distributions(wheel):
    assert memcfg.__version__ == wheel.version


def test_types_are_shipped_and_sources_are_not(paths):
    assert PurePosixPath("memcfg/py.typed") in paths
    compiled = [path for path in paths if path.suffix == ".so"]
    assert compiled
    for path in compiled:
        assert path.with_name(path.name.split(".")[0] + ".pyi") in paths
    sources = {".pyx", ".pxd", ".pxi", ".cpp"}
    shipped = [str(path) for path in paths if path.suffix in sources]
    assert shipped == ["memcfg/torch/limit/allocator.cpp"]  # compiled where PyTorch is
    assert not {"tests", "examples", "_native"} & {path.parts[0] for path in paths}


def test_pages_travel_with_the_package(paths):
    folder = PurePosixPath("memcfg/timeline")
    assert {folder / "page.html", folder / "page.js"} <= set(paths)


def test_the_wheel_is_small(wheel):
    """Deflate at its fastest takes more bytes than the wheel's."""
    own = (each for each in wheel.files if each.parts[0] == "memcfg")
    found = [path.locate() for path in own if path.suffix != ".pyc"]
    assert len(found) > 100
    assert sum(len(zlib.compress(path.read_bytes(), 1)) for path in found) < MOST


def test_releases_are_told_apart():
    """The citation and the changelog name the version of the package."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {memcfg.__version__}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{memcfg.__version__}] - " in changes


def test_public_builders_make_a_wheel_for_each_python_that_is_promised():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    builder, project = document["tool"]["cibuildwheel"], document["project"]
    named = [each.rpartition(" :: ")[2] for each in project["classifiers"]]
    pythons = [each for each in named if re.fullmatch(r"3\.\d+", each)]
    assert builder["build"].split() == [
        f"cp{python.replace('.', '')}-*" for python in pythons
    ]
    assert project["requires-python"] == f">={pythons[0]}"


def test_the_licence_travels_with_the_package(wheel, paths):
    assert wheel.metadata["License-Expression"] == "Apache-2.0"
    assert any(path.name == "LICENSE" for path in paths)


def test_the_sdist_has_what_tests_and_readers_need():
    """Tests of an unpacked sdist read pages, examples, benchmarks and CI's script."""
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    grafted = {line.split()[1] for line in lines if line.startswith("graft ")}
    assert {"_native", "bench", "docs", "examples", "tests", ".ci"} <= grafted


# What stands at the top of the repository.
TOP = {
    *(".ci", ".clang-format", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in"),
    *("README.md", "SECURITY.md"),
    *("_native", "bench", "docs", "examples", "memcfg", "tests"),
    *("pyproject.toml", "setup.py", "tox.ini"),
}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
def test_git_tracks_no_environment_and_nothing_that_a_program_wrote():
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = filter(None, done.stdout.split("\0"))
    assert {path.partition("/")[0] for path in paths} <= TOP
