"""``memcfg run``: a script under a budget."""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys
import traceback
from typing import TYPE_CHECKING

from memcfg import config
from memcfg.commands._sizes import limit
from memcfg.errors import ResourceExhaustedError
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from types import TracebackType

_DESCRIPTION = (
    "Run a Python script as the main program, with all of its memory under one limit, "
    "as inside of `with memcfg.budget(LIMIT)`: models, datasets, NumPy's arrays. The "
    "limit holds until the process ends, also for threads that the script leaves "
    "running. The status is the script's, or 1 after an exception."
)


def add_run(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg run`` to a parser."""
    parser = subparsers.add_parser(
        "run",
        usage="memcfg run [-h] --limit SIZE SCRIPT ...",
        help="run a script under a memory limit",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "--limit",
        type=limit,
        metavar="SIZE",
        help="the maximum of bytes in use, such as 2GiB",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "arguments",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="the script's arguments",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    """Run the script; return 1 if it raises, after its traceback."""
    if args.limit is None:
        args.parser.error(
            "--limit SIZE is required, before SCRIPT: what follows is the script's"
        )
    with open(args.script, "rb"):  # an OSError is one line, as of other commands
        pass
    arguments, path = sys.argv, sys.path.copy()
    sys.argv = [args.script, *args.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    try:
        _run_script(args.limit, args.script)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = _inside(error.__traceback__, args.script)
        traceback.print_exception(type(error), error, trace)
        return 1
    finally:
        sys.argv, sys.path[:] = arguments, path
    return 0


def _run_script(limit: int, script: str) -> None:
    """Run the script; the limit holds until the process ends.

    The interpreter waits for threads that the script has left, and calls what it has
    registered, after this.
    """
    whole = config.budget(f"{limit}B")
    whole.__enter__()
    atexit.register(whole.__exit__, None, None, None)
    try:
        with numpy_allocator(config.logical_device("CPU:0").pool):
            runpy.run_path(script, run_name="__main__")
    except ResourceExhaustedError as error:
        numpys = error.__cause__  # raised in the script, and says less
        if not isinstance(numpys, MemoryError):
            raise
        raise error.with_traceback(numpys.__traceback__) from None


def _inside(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Return a traceback from the script's first frame on; None if it is not there."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
