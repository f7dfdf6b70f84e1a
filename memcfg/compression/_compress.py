"""The whole of Deep Compression: prune, share and code, with training in between."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._caller import outside
from memcfg._checks import unknown
from memcfg.compression._choice import compressible, plain_steps, settings_of
from memcfg.compression._compressed_model import CompressedModel
from memcfg.compression._measure import arguments_of, measure, metric_of
from memcfg.compression._pruning import density_of, density_schedule, prune
from memcfg.compression._rate_distortion import quantize_by_rate, step_of
from memcfg.compression._sharing import bits_of, share_weights
from memcfg.compression._sparse_bytes import count_fillers, sparse_bytes
from memcfg.compression._stage_report import Report, Stage, WeightSummary
from memcfg.compression._strip import strip
from memcfg.compression.coding import Coding, encode
from memcfg.compression.coding._coding import MAX_INDEX_BITS
from memcfg.nn._argument_checks import integer, nonnegative, unit_interval
from memcfg.nn.inputs._elements import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn import Model

__all__ = ["compress"]

QUANTIZERS = ("k_means", "rate")
_ROUNDS = 12  # of halving the density
_FAILURES = 2  # in a row that end it: training may bring back what one has lost
_BISECTIONS = 2  # of the last halving, in logarithms
_REPEATS = 11  # of a timed step
# What is tried first; then what takes fewer bits, or more, while that helps.
_BITS = 5, (4, 3, 2), (6, 7, 8)
_STEPS = 0.5, (0.7, 1.0, 1.4), (0.35, 0.25, 0.18)


def compress(
    model: Model,
    data: Any,
    max_accuracy_loss: float = 0.005,
    *,
    validation_data: Any = None,
    validation_split: float = 0.0,
    metric: str | None = None,
    density: float | Mapping[str, float] | None = None,
    steps: int = 4,
    bits: int | Mapping[str, int] | None = None,
    quantizer: str = "k_means",
    step: float | Mapping[str, float] | None = None,
    rate_weight: float | None = None,
    coder: str = "huffman",
    epochs: int = 5,
    batch_size: int = 32,
    callbacks: Sequence[Any] = (),
) -> CompressedModel:
    """Prune a model, share its weights and code it, and train it in between.

    What is not given is searched for: densities are halved until training does not
    bring half of the allowed loss back, twice in a row, and bits are counted down from
    5, or up, until the allowed loss is met. Steps grow from 0.5, or shrink, likewise.
    A search chooses by the accuracy that it measures: measure it on samples that the
    model has not been trained on, and the result on others.

    Parameters
    ----------
    model : Model
        A compiled and trained model, which is left as it is. Copies of it are trained,
        one at a time, with its optimizer, under the limit of the device; ``close`` the
        model to leave them its memory.
    data : tuple, Dataset or sequence of batches
        What copies are trained on: ``(x, y)``, ``(x, y, sample_weight)``, or batches
        that can be read several times.
    max_accuracy_loss : float, default 0.005
        What the accuracy may fall by: at most 1, unless a metric is named.
    validation_data : tuple, Dataset or sequence of batches, optional
        What the accuracy is measured on; by default `data`.
    validation_split : float, default 0.0
        The share of `data`, the last of its samples, that the accuracy is measured on
        and nothing is trained on, as of `Model.fit`: with the share that the model was
        trained with, they are new to the model.
    metric : str, optional
        What is measured, by its name in the result of `evaluate`; more is better. None:
        an accuracy.
    density : float or mapping of str to float, optional
        The share of weights to keep, as of `prune`: one for all weights together, with
        a global threshold, or one for each. None: the lowest that is accurate enough.
    steps : int, default 4
        In how many steps a given density is reached, with training after each.
    bits : int or mapping of str to int, optional
        As of `share_weights`. None: the fewest that are accurate enough.
    quantizer : {"k_means", "rate"}, default "k_means"
        What shares weights: `share_weights`, which takes `bits`, or `quantize_by_rate`,
        which takes `step` and `rate_weight`.
    step, rate_weight : optional
        As of `quantize_by_rate`. None: the largest step that is accurate enough; the
        default weight.
    coder : {"huffman", "range", "none"}, default "huffman"
        As of `Coding`.
    epochs : int, default 5
        Epochs of training after each step.
    batch_size : int, default 32
        Samples of a step of training and of the batches that are timed.
    callbacks : sequence of Callback, default ()
        Callbacks of each training.

    Returns
    -------
    CompressedModel
        The coded model. Its ``report()`` has size, accuracy, time and peak memory of
        each stage.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the model does not measure the metric.
    RuntimeError
        If the model is not compiled.
    MissingDependencyError
        If the coder is the range coder, and constriction is not installed.
    InfeasiblePlanError
        If a step does not fit the limit of the device.

    Warns
    -----
    RuntimeWarning
        If the compressed model loses more accuracy than allowed.

    References
    ----------
    Han et al., "Deep compression: compressing deep neural networks with pruning,
    trained quantization and Huffman coding", ICLR 2016.
    """
    if quantizer not in QUANTIZERS:
        raise unknown("quantizer", quantizer, QUANTIZERS, "compress: ")
    found = compressible(model, "compress")
    plain_steps(model, "compress")
    # What is wrong is said before anything is trained.
    for given, check, what in (
        (density, density_of, "density"),
        (bits, bits_of, "bits"),
        (step, step_of, "step"),
    ):
        if given is not None:
            settings_of(found, given, check, f"compress: {what}")
    by_rate = {"step": step, "rate_weight": rate_weight}
    rates = [key for key, value in by_rate.items() if value is not None]
    if rate_weight is not None:
        nonnegative(rate_weight, "rate_weight")
    for key in rates if quantizer != "rate" else ["bits"] if bits is not None else []:
        raise ValueError(f"compress: the quantizer {quantizer!r} takes no {key}")
    encode(np.zeros(1, np.float32), coder=coder)
    loss = nonnegative(max_accuracy_loss, "max_accuracy_loss")
    if metric is None and loss > 1:
        raise ValueError(
            f"max_accuracy_loss must be at most 1, got {loss:g}: accuracies are from 0 "
            "to 1, so that a loss of two in a hundred is 0.02"
        )
    data, held_out = _divide(data, validation_data, validation_split)
    size = integer(batch_size, "batch_size")
    first = strip(model)
    measured = measure(first, held_out, size)
    name = metric_of(measured, metric, "compress")
    run = _Run(
        data, held_out, name, size, integer(epochs, "epochs"), tuple(callbacks), coder
    )
    run.note("given", first, measured[name])
    base = measured[name]
    if density is None:
        pruned, accuracy = run.prune_down(first, base, base - loss / 2)
    else:
        pruned, accuracy = run.prune_to(first, density, integer(steps, "steps"))
    run.note("pruned", pruned, accuracy)
    setting: Any = step if quantizer == "rate" else bits
    by = partial(share_weights, pruned)
    if quantizer == "rate":
        weight = {} if rate_weight is None else {"rate_weight": rate_weight}
        by = partial(quantize_by_rate, pruned, **weight)
    searched = _STEPS if quantizer == "rate" else _BITS
    shared, accuracy = run.share(by, pruned, setting, searched, base - loss)
    run.note("shared", shared, accuracy)
    result = run.coded(shared, accuracy)
    if accuracy < base - loss:
        warnings.warn(
            f"compress: {name} fell by {base - accuracy:.4f}, more than {loss:g}: "
            "allow more, keep more weights or bits, or train for more epochs",
            RuntimeWarning,
            stacklevel=outside(),
        )
    return result


@dataclass
class _Run:
    """The training and the measurements of one compression."""

    data: Any
    held_out: Any
    metric: str
    batch_size: int
    epochs: int
    callbacks: tuple[Any, ...]
    coder: str

    def __post_init__(self) -> None:
        self.stages: list[Stage] = []

    def trained(self, model: Model, before: Model | None = None) -> tuple[Model, float]:
        """Train a model; return it with its accuracy, and close the one before."""
        if before is not None:
            before.close()
        x, *rest = arguments_of(self.data)
        options: dict[str, Any] = {"epochs": self.epochs, "verbose": 0}
        options["callbacks"] = list(self.callbacks)
        if rest:
            options |= dict(zip(("y", "sample_weight"), rest, strict=False))
            options["batch_size"] = self.batch_size
        model.fit(x, **options)
        accuracy = measure(model, self.held_out, self.batch_size)[self.metric]
        return model, accuracy

    def prune_to(self, model: Model, density: Any, steps: int) -> tuple[Model, float]:
        """Prune in steps to a density, or to one for each weight."""
        several = isinstance(density, Mapping)
        ends = density if several else {"": density}
        rows = [density_schedule(end, steps) for end in ends.values()]
        accuracy = 0.0
        for row in zip(*rows, strict=True):
            if several:
                pruned = prune(model, dict(zip(ends, row, strict=True)))
            else:
                pruned = prune(model, row[0], scope="global")
            model, accuracy = self.trained(pruned, model)
        return model, accuracy

    def prune_down(
        self, model: Model, accuracy: float, least: float
    ) -> tuple[Model, float]:
        """Halve the density while training keeps the accuracy, then bisect."""
        best, density = (model, accuracy), 1.0
        tried, failures = model, 0
        for exponent in range(1, _ROUNDS + 1):
            pruned = prune(tried, 0.5**exponent, scope="global")
            tried, found = self.trained(pruned, tried)
            failures = 0 if found >= least else failures + 1
            if not failures:
                best, density = (tried, found), 0.5**exponent
            elif failures == _FAILURES:
                break
        tried.close()
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            pruned = prune(best[0], density * 0.5**middle, scope="global")
            tried, found = self.trained(pruned, best[0])
            if found >= least:
                best, low = (tried, found), middle
            else:
                high = middle
                tried.close()
        return best

    def share(
        self,
        by: Callable[[Any], Model],
        model: Model,
        given: Any,
        searched: tuple[Any, tuple[Any, ...], tuple[Any, ...]],
        least: float,
    ) -> tuple[Model, float]:
        """Share by a setting, or by the coarsest accurate one, or by the finest."""
        if given is not None:
            return self.trained(by(given), model)
        first, coarser, finer = searched
        best, accuracy = self.trained(by(first), model)
        fewer = accuracy >= least
        for each in coarser if fewer else finer:
            tried, found = self.trained(by(each), best)
            if fewer and found < least:
                tried.close()
                break
            best, accuracy = tried, found
            if not fewer and found >= least:
                break
        return best, accuracy

    def note(self, name: str, model: Model, accuracy: float) -> None:
        """Measure a model as a stage."""
        model.close()  # one has memory at a time
        plain = strip(model)
        nbytes = sum(4 * each.size for each in plain.get_weights())
        if name == "pruned":
            nbytes = sum(map(_pruned_bytes, plain.get_weights()))
            nbytes += self._file(plain, "none").header_bytes
        elif name == "shared":
            nbytes = self._file(plain, "none").nbytes
        seconds = self._seconds(plain.predict_on_batch)
        peak = plain.plan(self.batch_size, program="predict").peak_bytes
        plain.close()
        train_peak = model.plan(self.batch_size).peak_bytes
        self.stages.append(Stage(name, nbytes, accuracy, seconds, peak, train_peak))

    def coded(self, model: Model, accuracy: float) -> CompressedModel:
        """Code a model, and attach the report."""
        plain = strip(model)
        model.close()
        result = self._file(plain, self.coder)
        codes = {each.name: each.nbytes for each in result.weights}
        rows = []
        for weight in compressible(plain, "compress").values():
            value = plain._read_weight(weight.layer, weight.spec_name)
            kept = value[value != 0]
            rows.append(
                WeightSummary(
                    weight.name,
                    value.size,
                    kept.size,
                    len(np.unique(kept)),
                    codes[weight.key],
                )
            )
        plain.close()
        streamed = result.streamed()
        last = self.stages[-1]._replace(
            name="coded",
            nbytes=result.nbytes,
            seconds=self._seconds(streamed.predict_on_batch),
            predict_peak=streamed.plan(self.batch_size, program="predict").peak_bytes,
        )
        streamed.close()
        self.stages.append(last)
        result._report = Report(self.metric, self.batch_size, self.stages, rows)
        return result

    def _file(self, plain: Model, coder: str) -> CompressedModel:
        """Return the file of a model with plain weights."""
        names = compressible(plain, "compress")
        return CompressedModel(plain, {name: Coding(coder=coder) for name in names})

    def _seconds(self, predict: Callable[[Any], Any]) -> float:
        """Return the median time of a batch, after a first one."""
        batch = _first_batch(self.held_out, self.batch_size)
        times = []
        for _ in range(1 + _REPEATS):
            begin = time.perf_counter()
            predict(batch)
            times.append(time.perf_counter() - begin)
        return float(np.median(times[1:]))


def _pruned_bytes(weight: Any) -> int:
    """Return the bytes of what is left of a weight, with the best bits of indices."""
    indices = np.flatnonzero(weight)
    sizes = [
        sparse_bytes(len(indices) + count_fillers(indices, bits), 32, bits)
        for bits in range(1, MAX_INDEX_BITS + 1)
    ]
    least: float = min(*sizes, 4 * weight.size)
    return math.ceil(least)


def _first_batch(data: Any, size: int) -> Any:
    """Return the inputs of a batch of arrays, or of the first one of a dataset."""
    x, *rest = arguments_of(data)
    if rest:
        return _rows(x, slice(size))
    if hasattr(x, "reset"):
        x.reset()
    return unpack(next(iter(x)), labelled=True)[0]


def _divide(data: Any, validation_data: Any, share: Any) -> tuple[Any, Any]:
    """Return what is trained on, and what the accuracy is measured on."""
    part = unit_interval(share, "validation_split")
    if not part:
        return data, data if validation_data is None else validation_data
    if validation_data is not None:
        raise ValueError("give validation_split or validation_data, not both")
    arrays = arguments_of(data)
    if len(arrays) == 1:
        raise ValueError("validation_split divides arrays: pass (x, y) as data")
    count = _length(arrays[1])
    split = math.floor(count * (1 - part))
    if split in (0, count):
        raise ValueError(
            f"validation_split={share!r} of {count} samples leaves one part empty"
        )
    first, last = slice(split), slice(split, None)
    return (
        tuple(_rows(each, first) for each in arrays),
        tuple(_rows(each, last) for each in arrays),
    )


def _length(y: Any) -> int:
    """Return the number of samples of an array, or of arrays."""
    if isinstance(y, Mapping):
        return _length(next(iter(y.values())))
    if isinstance(y, list | tuple) and all(hasattr(each, "shape") for each in y):
        return _length(y[0])
    return len(y)


def _rows(x: Any, part: slice) -> Any:
    """Return a part of the samples of arrays; None stays."""
    if x is None:
        return None
    if isinstance(x, Mapping):
        return {name: _rows(each, part) for name, each in x.items()}
    if isinstance(x, list | tuple) and all(hasattr(each, "shape") for each in x):
        return [_rows(each, part) for each in x]
    return x[part]
