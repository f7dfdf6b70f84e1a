"""Compile the extension modules; everything else stands in pyproject.toml.

``MEMCFG_DEBUG=1`` compiles with Cython's bounds checks and without optimisation.
As many compilers run at once as there are processors, or as ``build_ext -j`` says;
they run under ccache where it is installed and neither ``CC`` nor ``CXX`` is set.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

DEBUG = os.environ.get("MEMCFG_DEBUG") == "1"
PROCESSORS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
HEADERS = sorted(glob("_native/**/*.[hi]*", recursive=True))
GENERATED = "build/generated/expressions.cpp"  # loops of the library's own ops
# Exactly one module links the native core: two would have two sets of limits.
NATIVE_SOURCES = {
    "memcfg._core.engine": [
        *sorted(glob("_native/src/**/*.cpp", recursive=True)),
        GENERATED,
    ],
}
# The same bits everywhere: a product and a sum must not become one instruction. x86-64
# has such instructions only in extensions that nothing here is compiled for.
NO_CONTRACTION = [] if platform.machine() == "x86_64" else ["-ffp-contract=off"]
DIRECTIVES = {
    "language_level": "3",
    "embedsignature": True,
    "embedsignature.format": "python",
    "auto_pickle": False,
    "autotestdict": False,
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
}


class BuildExtensions(build_ext):
    """Add OpenMP where the compiler has it, and compile sources side by side."""

    def build_extensions(self) -> None:
        """Compile every extension."""
        if {"CC", "CXX"}.isdisjoint(os.environ) and (ccache := shutil.which("ccache")):
            for name in ("compiler_so", "compiler_so_cxx"):
                if command := getattr(self.compiler, name, None):
                    setattr(self.compiler, name, [ccache, *command])
        if self._has_openmp():
            for extension in self.extensions:
                extension.extra_compile_args.append("-fopenmp")
                extension.extra_link_args.append("-fopenmp")
        with ThreadPoolExecutor(self.parallel or PROCESSORS) as executor:
            self.compiler.compile = functools.partial(
                compile_each, executor, self.compiler.compile
            )
            self.parallel = len(self.extensions)  # all of them share the executor
            super().build_extensions()

    def _has_openmp(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.cpp")
            source.write_text(
                "#include <omp.h>\nint main() { return omp_get_num_threads() - 1; }\n"
            )
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=["-fopenmp"]
                )
                self.compiler.link_executable(
                    objects,
                    "probe",
                    output_dir=folder,
                    extra_postargs=["-fopenmp"],
                    target_lang="c++",
                )
            except (CompileError, LinkError):
                return False
        return True


def compile_each(executor, compile_sources, sources, **options) -> list[str]:
    """Compile each source in a task of its own, the largest first."""
    by_size = sorted(sources, key=os.path.getsize, reverse=True)
    tasks = {one: executor.submit(compile_sources, [one], **options) for one in by_size}
    try:
        return [path for source in sources for path in tasks[source].result()]
    finally:
        for task in tasks.values():
            task.cancel()  # what has not begun, if one failed


def extension(path: str) -> Extension:
    """Describe the module that a ``.pyx`` file becomes."""
    name = path.removesuffix(".pyx").replace(os.sep, ".")
    return Extension(
        name,
        [path, *NATIVE_SOURCES.get(name, [])],
        language="c++",
        include_dirs=["_native/include", "_native/src", numpy.get_include()],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
            ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),  # the oldest that it runs on
        ],
        libraries=["dl"] if sys.platform == "linux" else [],
        depends=HEADERS,
        extra_compile_args=[
            "-std=c++17",
            *(["-O0", "-g"] if DEBUG else ["-O3", "-g0"]),
            "-fvisibility=hidden",
            "-fno-math-errno",  # a square root may then be a vector one
            *NO_CONTRACTION,
        ],
    )


subprocess.run([sys.executable, "_native/generate.py", GENERATED], check=True)
setup(
    ext_modules=cythonize(
        [extension(path) for path in sorted(glob("memcfg/_core/*.pyx"))],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
    ),
    cmdclass={"build_ext": BuildExtensions},
)
