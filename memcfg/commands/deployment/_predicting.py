"""``memcfg predict``: the outputs of a model in a file, within a limit."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import compression, config, nn
from memcfg._core._holders import margin_beside
from memcfg.commands._sizes import limit
from memcfg.commands._whole_numbers import positive
from memcfg.errors import FormatError, InfeasiblePlanError
from memcfg.files import open_file, write_atomically
from memcfg.memory import numpy_allocator
from memcfg.nn.models import stored_model
from memcfg.units import align_up, exact

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import numpy.typing as npt

_NAMES = 8  # of an archive's arrays, that are listed
_DESCRIPTION = (
    "Print the outputs of a model for samples in a .npy file: a line for each sample, "
    "numbers separated by spaces. The weights of a compressed model (.mcz) stay in its "
    "file: each is read and decoded before it is needed, while what is before it "
    "computes. The peak of memory, with the model's and NumPy's arrays, goes to the "
    "error stream, and without --limit also a limit that is enough."
)


def add_predict(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Add ``memcfg predict`` to a parser."""
    parser = subparsers.add_parser(
        "predict",
        help="predict with a model in a file under a memory limit",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "--limit",
        type=limit,
        metavar="SIZE",
        help="the maximum of bytes in use, such as 32MiB (default: no limit)",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="samples of a step (default: 1, which needs least)",
    )
    parser.add_argument(
        "--products",
        choices=("dense", "auto"),
        default="dense",
        help=(
            "auto: multiply by codes where that is faster; outputs then differ by "
            "rounding (default: dense)"
        ),
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the outputs to a .npy file instead of printing them",
    )
    parser.add_argument("model", metavar="MODEL", help="a .mcz or .memcfg file")
    parser.add_argument("data", metavar="DATA", help="a .npy file of samples")
    parser.set_defaults(run=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    if not args.model.endswith((".mcz", ".memcfg")):
        args.parser.error(f"MODEL is a .mcz or .memcfg file, not {args.model!r}")
    samples = _samples(args.data)
    pool = config.logical_device("CPU:0").pool
    if args.limit is None:  # NumPy's arrays count, as under a limit
        within: AbstractContextManager[object] = numpy_allocator(pool)
    else:
        within = config.budget(f"{args.limit}B")
    with within, _opened(args.model, args.products) as model:
        try:
            outputs = _predict(model, samples, args)
        except InfeasiblePlanError as error:
            raise _with_options(error, args) from None
        peak = pool.stats().peak_bytes
    if args.output is None:
        _print(outputs)
    else:
        write_atomically(args.output, _as_file(outputs))
    allowed = f"; {_enough(peak)} is enough as --limit"
    if args.limit is not None:
        allowed = f" of {exact(args.limit)}"
    print(
        f"memcfg: {len(samples)} samples, at a peak of {exact(peak)}{allowed}",
        file=sys.stderr,
    )
    return 0


def _with_options(
    error: InfeasiblePlanError, args: argparse.Namespace
) -> InfeasiblePlanError:
    """Return the error with the options of this command instead of the model's."""
    error = error._with(limits_with={})
    if args.products == "auto" or not args.model.endswith(".mcz"):
        return error
    with _opened(args.model, "auto") as model:
        try:
            model.plan(args.batch, program="predict")
        except InfeasiblePlanError as other:
            needed = other.smallest_limit_bytes
            if needed >= error.smallest_limit_bytes:
                return error
            return error._with(limits_with={"--products auto": needed})
    return error.with_hint("--products auto fits; outputs then differ by rounding.")


def _enough(peak: int) -> str:
    """Return a limit that leaves a peak of bytes, and its margin for arrays."""
    return f"{align_up(peak + margin_beside(peak), 1024) // 1024}KiB"


@contextmanager
def _opened(path: str, products: str) -> Iterator[nn.Model]:
    """Open a model whose weights stay in their file until a step needs them."""
    if not path.endswith(".mcz"):
        with stored_model(path) as model:
            yield model
        return
    model = compression.load(path).streamed(products=products)
    try:
        yield model
    finally:
        model.close()


def _samples(path: str) -> npt.NDArray[Any]:
    """Map a .npy file, so that its bytes are read as they are needed."""
    with open_file(path):  # an OSError names the file
        pass
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, ValueError, OverflowError):
        problem = "is not a .npy file of numbers, or is damaged"
        raise FormatError(f"{path} {problem}") from None
    if not isinstance(found, np.ndarray):
        with found:
            names = ", ".join(sorted(found.files)[:_NAMES])
        raise FormatError(
            f"{path} is an archive of arrays ({names}): save the samples alone, by "
            "numpy.save('samples.npy', x)"
        )
    if found.ndim == 0 or len(found) == 0:
        raise FormatError(f"{path} has no samples: an array of one or more is needed")
    return found


def _predict(
    model: nn.Model, samples: npt.NDArray[Any], args: argparse.Namespace
) -> npt.NDArray[np.float32]:
    try:
        outputs = model.predict(samples, args.batch, verbose=0)
    except (TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{args.data} is not for this model: {error}") from None
    if not isinstance(outputs, np.ndarray):
        raise FormatError(f"{args.model} has several outputs; predict prints one")
    return outputs


def _print(outputs: npt.NDArray[np.float32]) -> None:
    for row in outputs.reshape(len(outputs), -1):
        print(*(np.format_float_positional(value) for value in row))


def _as_file(outputs: npt.NDArray[np.float32]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, outputs, allow_pickle=False)
    return stream.getvalue()
