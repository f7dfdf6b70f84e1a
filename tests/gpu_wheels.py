"""Bring to a machine with a GPU, and without a network, what the report needs there.

Here, with a network, and at best a Python of that machine's version that has headers::

    python tests/gpu_wheels.py fetch WHEELS --python python3.12

There, where CUDA's toolkit, g++, PyTorch, NumPy and scikit-learn are::

    bash tests/gpu_run.sh WHEELS

With the other Python, memcfg and pycuda are compiled here, else there, which takes
minutes. The wheels and the sources are below 64 MB together.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MB = 10**6
LARGEST = 54 * MB  # of all files; the sources beside them have less than 10
PYCUDA = "pycuda>=2024.1"
NEEDED = (  # what runs, of what nobody needs to have: without their dependencies
    *("rich", "markdown-it-py", "mdurl", "pygments", "safetensors", "onednn-cpu-gomp"),
    *("pytools", "siphash24", "mako", "markupsafe", "platformdirs"),
    *("typing-extensions", "nvidia-cudnn-frontend<1.29", "hypothesis"),
    *("sortedcontainers", "pytest", "iniconfig", "pluggy", "packaging"),
    *("pytest-xdist", "execnet"),
)
LIBRARY = "libdnnl.so.3"  # oneDNN
PACKED = f"{LIBRARY}.gz"
TO_COMPILE = ("setuptools>=77", "wheel", "Cython>=3.2,<3.4")
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")  # of glibc, manylinux's


def fetch(folder, python_version, python=None):
    """Download all into an empty folder, and compile what a Python at hand can."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    wanted = NEEDED if python else (*NEEDED, *TO_COMPILE)
    chosen = ["--only-binary=:all:", "--implementation=cp"]
    chosen += [f"--python-version={python_version}"]
    chosen += [f"--platform=manylinux_{glibc}_x86_64" for glibc in PLATFORMS]
    chosen += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    pip(sys.executable, "download", "--no-deps", "-d", folder, *chosen, *wanted)
    keep_library(folder)
    with tempfile.TemporaryDirectory() as aside:
        environment = Path(aside, "environment")
        builder = python or sys.executable
        run(builder, "-m", "venv", environment)
        builder = environment / "bin/python"
        pip(builder, "install", *TO_COMPILE, "numpy>=2")
        source = ["--no-deps", "--no-build-isolation", "--no-binary=:all:", PYCUDA]
        pip(builder, "download", "-d", aside if python else folder, *source)
        if python:
            check_version(builder, python_version)
            (sdist,) = Path(aside).glob("pycuda-*.tar.gz")
            compile_pycuda(builder, sdist, folder)
            compile_memcfg(builder, folder)
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{nbytes / MB:.1f} MB in {folder}")
    if nbytes > LARGEST:
        raise SystemExit(f"these are more than {LARGEST / MB:.0f} MB")


def keep_library(folder):
    """Keep of oneDNN's wheel the library: it has it three times."""
    (wheel,) = folder.glob("onednn_cpu_gomp-*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (each for each in file.namelist() if each.endswith(f"/{LIBRARY}"))
        with file.open(name) as source, gzip.open(folder / PACKED, "wb") as packed:
            shutil.copyfileobj(source, packed)
    wheel.unlink()


def check_version(python, wanted):
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.check_output([python, "-c", show], text=True).strip()
    if found != wanted:
        raise SystemExit(f"{python} is Python {found}, not {wanted}")


def install(folder, target):
    """Install all that this Python has not, and compile what comes as a source."""
    target.mkdir(parents=True, exist_ok=True)
    wheels = [path for path in sorted(folder.glob("*.whl")) if is_missing(path.name)]
    offline = ["--no-index", "--no-deps", "--no-compile", "--target", target]
    if wheels:
        pip(sys.executable, "install", *offline, *wheels)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if (folder / PACKED).exists():
        with (
            gzip.open(folder / PACKED) as source,
            (target / LIBRARY).open("wb") as made,
        ):
            shutil.copyfileobj(source, made)
    sdists = list(folder.glob("pycuda-*.tar.gz"))
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor() as pool:
        jobs = [pool.submit(compile_pycuda, sys.executable, s, made) for s in sdists]
        if not list(folder.glob("memcfg-*.whl")):
            jobs.append(pool.submit(compile_memcfg, sys.executable, made))
        failures = [str(job.exception()) for job in jobs if job.exception()]
        if compiled := list(Path(made).glob("*.whl")):
            pip(sys.executable, "install", *offline, *compiled)
    if failures:
        raise SystemExit("\n".join(failures))


def is_missing(wheel):
    """Whether a wheel, by its name, is to be installed: memcfg's always is."""
    name = wheel.split("-")[0]
    if name == "memcfg":
        return True
    try:
        version(name)
    except PackageNotFoundError:
        return True
    return False


# -- what is compiled ------------------------------------------------------------------


def compile_memcfg(python, folder):
    """Make a wheel of these sources."""
    with tempfile.TemporaryDirectory() as aside:
        copy = Path(aside, "memcfg")
        left = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__", "*.whl")
        shutil.copytree(ROOT, copy, ignore=left)
        pip(python, "wheel", *("--no-index", "--no-deps"), "-w", folder, copy)


def compile_pycuda(python, sdist, folder):
    """Make a wheel of pycuda's sources, without cuRAND.

    It is linked to an empty library that has the name of the driver's, which need not
    be here: symbols are looked up when it is loaded. A linker would leave it out.
    """
    with tempfile.TemporaryDirectory() as aside:
        with tarfile.open(sdist) as file:
            file.extractall(aside, filter="data")
        (source,) = Path(aside).glob("pycuda-*")
        empty = Path(aside, "empty.cpp")
        empty.touch()
        linked = ["-Wl,-soname,libcuda.so.1", "-o", Path(aside, "libcuda.so")]
        run("g++", "-shared", "-fPIC", empty, *linked)
        options = ["--no-cuda-enable-curand", f"--cuda-root={toolkit()}"]
        options += [f"--cudadrv-lib-dir={aside}"]
        run(python, "configure.py", *options, cwd=source)
        flags = {"LDFLAGS": "-Wl,--no-as-needed -s"}
        offline = ("--no-index", "--no-deps")
        pip(python, "wheel", *offline, "-w", folder, source, variables=flags)


def toolkit():
    """The folder of CUDA's headers: as nvcc says, or one of the usual."""
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        command = [nvcc, "-dryrun", "-x", "cu", "-c", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if found := re.search(r"_HERE_=(\S+)", said.stderr):
            places.insert(0, str(Path(found[1]).parent))
    for place in filter(None, places):
        if Path(place, "include/cuda.h").is_file():
            return place
    raise SystemExit(f"there is no include/cuda.h in any of {places}")


def pip(python, command, *arguments, variables=None):
    quiet = ["--quiet", "--disable-pip-version-check"]
    if command == "wheel":
        quiet.append("--no-build-isolation")
    run(python, "-m", "pip", command, *quiet, *arguments, variables=variables)


def run(*command, cwd=None, variables=None):
    """Run a program; end with what it said if it fails."""
    text = list(map(str, command))
    done = subprocess.run(
        text,
        cwd=cwd,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(variables or {})},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(text[:6])} ... failed:\n{done.stdout[-3000:]}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("fetch", help="download and compile, with a network")
    one.add_argument("folder", type=Path)
    one.add_argument("--version", default="3.12", help="of Python there")
    one.add_argument("--python", help="one of that version here, to compile with")
    two = commands.add_parser("install", help="without a network")
    two.add_argument("folder", type=Path)
    two.add_argument("target", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "fetch":
        fetch(chosen.folder, chosen.version, chosen.python)
    else:
        install(chosen.folder, chosen.target)


if __name__ == "__main__":
    main()
