"""``memcfg compress``: a trained model in a file of a fraction of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg import compression, config, nn
from memcfg.archives import read_arrays
from memcfg.commands._sizes import limit
from memcfg.commands._whole_numbers import positive
from memcfg.errors import FormatError
from memcfg.units import exact

if TYPE_CHECKING:
    import argparse

    import numpy.typing as npt

_DESCRIPTION = (
    "Prune a trained model, let its weights share values, code both, and train it in "
    "between, by Deep Compression. Densities and bits are searched for, as few as the "
    "loss of accuracy allows. Prints size, accuracy, time and peak of each stage."
)


def add_compress(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Add ``memcfg compress`` to a parser."""
    parser = subparsers.add_parser(
        "compress",
        help="compress a trained model in a file to a fraction",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a .memcfg file of a compiled model"
    )
    parser.add_argument(
        "data", metavar="DATA", help="a .npz file with arrays x and y, to train on"
    )
    parser.add_argument("output", metavar="OUTPUT", help="the .mcz file to write")
    parser.add_argument(
        "--max-accuracy-loss",
        type=float,
        default=0.005,
        metavar="L",
        help="what the accuracy may fall by (default: 0.005)",
    )
    parser.add_argument(
        "--validation-split",
        type=float,
        default=0.0,
        metavar="V",
        help="the share of the samples, the last ones, that the accuracy is measured "
        "on and nothing is trained on (default: 0, it is measured on all)",
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        default=5,
        metavar="N",
        help="epochs of training after each step (default: 5)",
    )
    parser.add_argument(
        "--coder",
        choices=("huffman", "range", "none"),
        default="huffman",
        help="how what is left is coded (default: huffman)",
    )
    parser.add_argument(
        "--quantizer",
        choices=("k_means", "rate"),
        default="k_means",
        help="what lets weights share values (default: k_means)",
    )
    parser.add_argument(
        "--limit",
        type=limit,
        metavar="SIZE",
        help="the maximum of bytes in use, such as 1GiB (default: no limit)",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    for name, suffix in (("model", ".memcfg"), ("output", ".mcz")):
        path = getattr(args, name)
        if not path.endswith(suffix):
            args.parser.error(f"{name.upper()} is a {suffix} file, not {path!r}")
    if args.limit is None:
        _compress(args)
    else:
        with config.budget(f"{args.limit}B"):
            _compress(args)
    return 0


def _compress(args: argparse.Namespace) -> None:
    model = nn.models.load_model(args.model)
    data = _data(args.data)
    try:
        small = compression.compress(
            model,
            data,
            args.max_accuracy_loss,
            validation_split=args.validation_split,
            epochs=args.epochs,
            coder=args.coder,
            quantizer=args.quantizer,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{args.model} cannot be compressed: {error}") from None
    small.save(args.output)
    print(small.report())
    sizes = f"{exact(small.nbytes)} for {exact(small.dense_bytes)}"
    print(f"{args.output}: {sizes} of weights")


def _data(path: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    found = read_arrays(path, "file of arrays x and y", ("x", "y"))
    return found["x"], found["y"]
