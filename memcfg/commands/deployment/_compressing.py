"""``memcfg compress``: a trained model in a file of a fraction of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg import compression, config, nn
from memcfg.archives import read_arrays
from memcfg.commands._at_work import shown
from memcfg.commands._sizes import limit
from memcfg.commands._whole_numbers import positive
from memcfg.errors import FormatError
from memcfg.units import exact

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

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
        with shown("measuring the model") as show:
            small = compression.compress(
                model,
                data,
                args.max_accuracy_loss,
                validation_split=args.validation_split,
                epochs=args.epochs,
                coder=args.coder,
                quantizer=args.quantizer,
                callbacks=() if show is None else (_Progress(show),),
            )
    except (RuntimeError, TypeError, ValueError) as error:
        raise FormatError(f"{args.model} cannot be compressed: {error}") from None
    small.save(args.output)
    print(small.report())
    sizes = f"{exact(small.nbytes)} for {exact(small.dense_bytes)}"
    print(f"{args.output}: {sizes} of weights")


class _Progress(nn.callbacks.Callback):
    """Shows which copy of the model is trained, and how well it does."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show, self._copies, self._logs = show, 0, ""

    def on_train_begin(self, logs: Any = None) -> None:
        """Count the copy."""
        self._copies += 1
        self._logs = ""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Show the epoch that begins, with the numbers of the one before."""
        epochs = self.params["epochs"]
        words = f"training copy {self._copies}: epoch {epoch + 1}/{epochs}"
        self._show(f"{words}{self._logs}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep the numbers of the epoch."""
        self._logs = "".join(f" - {k}: {v:.4f}" for k, v in (logs or {}).items())


def _data(path: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    found = read_arrays(path, "file of arrays x and y", ("x", "y"))
    return found["x"], found["y"]
