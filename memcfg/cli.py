"""The command line: ``memcfg plan``, ``compare``, ``timeline``, ``run`` and others.

An error is one line on the error stream, wrapped on a terminal. The status is 2 for
errors that the user can correct, and 1 for a plan that does not exist or is invalid. An
interrupt or a closed pipe ends a command silently, with the status that a shell would
report.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from memcfg._checks import unknown
from memcfg._terminal import width
from memcfg._version import __version__
from memcfg.errors import InfeasiblePlanError, MemcfgError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_INTERRUPTED, _UNREAD = 130, 141  # 128 plus the number of SIGINT and of SIGPIPE
_COMMANDS = {  # modules of memcfg.commands
    "plan": "_plans",
    "compare": "comparison._compare",
    "judge": "_plans",
    "place": "_plans",
    "timeline": "_plans",
    "devices": "_listing",
    "run": "_scripts",
    "top": "watching._top",
    "torch": "estimation._torch_steps",
    "compress": "deployment._compressing",
    "predict": "deployment._predicting",
    "demo": "_demo",
}
_OPTIONS = ("-h", "--help", "--version")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and suggest the nearest option.

    A description that is the line of a command's help becomes a sentence.
    """

    def __init__(self, *, description: str, **options: Any) -> None:
        if not description.endswith("."):
            description = f"{description[0].upper()}{description[1:]}."
        super().__init__(description=description, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and report unknown options where all options are known.

        An unknown option is reported before its value is taken for an argument.
        """
        words = sys.argv[1:] if args is None else list(args)
        names = (name for action in self._actions for name in action.option_strings)
        known = [name for name in names if name.startswith("--")]
        ends = any(
            action.nargs in (argparse.PARSER, argparse.REMAINDER)
            for action in self._actions
        )
        for word in () if ends else words:
            if word == "--":
                break
            self._check(word, known)
        result, extra = super().parse_known_args(words, namespace)
        for word in extra:
            self._check(word, known)
        words = [word for word in extra if not word.startswith("-")]
        if words and "--networks" in known:
            named = ",".join(words)
            self.error(f"unexpected argument {named!r}: try --networks {named}")
        return result, extra

    def _check(self, word: str, known: Sequence[str]) -> None:
        """Report a word that is an unknown option."""
        name = word.partition("=")[0]
        if name.startswith("--") and not any(each.startswith(name) for each in known):
            self.error(str(unknown("option", name, known)))

    def error(self, message: str) -> NoReturn:
        self.exit(2, _error_line(message) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str or None, default None
        The arguments after ``memcfg``; None for those of the process.

    Returns
    -------
    int
        The exit status: 0, 1 for an infeasible or invalid plan, 2 for an error that the
        user can correct, 130 after an interrupt, 141 if the reader closed the output.
        Without arguments it is 2, and the help goes to the error stream.

    Raises
    ------
    SystemExit
        If the arguments are wrong (2) or ask for help or the version (0).
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # flush here, where a failure can still be reported
    except KeyboardInterrupt:
        with suppress(OSError):
            print("memcfg: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _UNREAD
    except OSError as error:
        _discard_output()
        return _fail(f"standard output: {error.strerror or error}", 2)


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:  # the help of memcfg, or of the command that follows
        words = [*words[1:2], "--help"]
    parser = _parser(words)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if not words[0].startswith("-") and words[0] not in _COMMANDS:
        parser.error(str(unknown("command", words[0], _COMMANDS)))
    if words[0].startswith("-") and words[0] not in _OPTIONS:
        parser.error(str(unknown("option", words[0], _OPTIONS)))
    args = parser.parse_args(_with_negative_values(words))
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except InfeasiblePlanError as error:
        return _fail(str(error), 1)
    except MemcfgError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{name}{error.strerror or error}", 2)


def _with_negative_values(words: list[str]) -> list[str]:
    """Join ``--limit -5%`` to ``--limit=-5%``, as argparse takes -5% for an option.

    The parser of the value can then explain what is wrong.
    """
    result = words[:1]
    for number, word in enumerate(words[1:], 1):
        if words[0] == "run" and number > 3:  # these may be the script's
            return result + words[number:]
        if re.match(r"-\.?[0-9]", word) and result[-1].startswith("--"):
            result[-1] += f"={word}"
        else:
            result.append(word)
    return result


def _discard_output() -> None:
    """Discard buffered output, which would fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """Return the parser; only the module of the given command is imported."""
    parser = _Parser(prog="memcfg", description="Train inside a hard memory limit.")
    parser.add_argument("--version", action="version", version=f"memcfg {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    asked = [name for name in _COMMANDS if name in words[:1]]
    for name in asked or _COMMANDS:
        module = import_module(f"memcfg.commands.{_COMMANDS[name]}")
        getattr(module, f"add_{name}")(subparsers)
    return parser


def _fail(message: str, status: int) -> int:
    print(_error_line(" ".join(message.split())), file=sys.stderr)
    return status


def _error_line(message: str) -> str:
    """Print an error on one line, or wrapped if stderr is a terminal."""
    line = f"memcfg: error: {message}"
    if sys.stderr is None or not sys.stderr.isatty():
        return line
    return textwrap.fill(
        line,
        width(),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
