"""Connectionist temporal classification: its loss, its gradient, its best paths.

``ctc_loss`` {blank} reads logits [sample, step, class], labels [sample, place] in int32
and, for each sample, the number of its labels and of its steps in int32. It sums the
probabilities of all alignments of the labels with the steps: a class for each step, of
which runs of one class are merged and blanks are dropped. The loss of labels that no
alignment has is infinite, and its gradient NaN; lengths or labels out of range give
NaN. Backward computes the sums over the steps again and keeps nothing but the inputs.

``ctc_beam_search`` {blank, beam_width, top_paths} keeps the most probable beginnings of
label sequences after each step, and returns the best ones, -1 after their ends, with
the logarithms of their probabilities.

Graves, Fernández, Gomez and Schmidhuber, "Connectionist temporal classification",
ICML 2006; Hannun, Maas, Jurafsky and Ng, arXiv:1408.2873, for the beam search.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    register,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


def _check(kind: str, inputs: Sequence[Spec], attributes: Attributes) -> None:
    """Raise GraphError unless the operands are those of a batch of sequences."""
    logits, *counts = inputs
    require("float" in logits.dtype, f"{kind}: logits of floats, not {logits.dtype}")
    require(
        len(logits.shape) == 3,
        f"{kind}: logits have axes for samples, steps and classes, got {logits.shape}",
    )
    for spec in counts:
        require(spec.dtype == "int32", f"{kind}: integers are int32, not {spec.dtype}")
    blank = attributes["blank"]
    require(
        0 <= blank < max(logits.shape[-1], 1),
        f"{kind}: blank {blank} is none of {logits.shape[-1]} classes",
    )


def _infer(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    logits, labels, *lengths = inputs[:4]
    _check("ctc_loss", inputs[:4], attributes)
    samples = logits.shape[:1]
    require(
        len(labels.shape) == 2
        and labels.shape[:1] == samples
        and all(each.shape == samples for each in lengths),
        f"ctc_loss: labels of shape {labels.shape} and lengths of shapes "
        f"{' and '.join(str(each.shape) for each in lengths)} do not fit "
        f"{logits.shape}",
    )
    return [Spec(samples, logits.dtype)]


def _infer_gradient(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    _infer(inputs, attributes)
    return [Spec(inputs[0].shape, inputs[0].dtype)]


def _log_probabilities(x: Array) -> Array:
    most = x.max(-1, keepdims=True)
    result: Array = x - most - np.log(np.exp(x - most).sum(-1, keepdims=True))
    return result


def _later(a: Array, by: int) -> Array:
    """Return states moved to later places, from which nothing comes at the start."""
    return np.concatenate([np.full((len(a), by), -inf), a], 1)[:, : a.shape[1]]


class _Lattice:
    """The sums of the probabilities of alignments up to each step and state.

    State 2i + 1 is label i, those between are blanks.
    """

    def __init__(self, blank: int, inputs: Arrays) -> None:
        x, labels, self.counts, self.steps = inputs[:4]
        samples, width = labels.shape
        within = np.arange(width) < self.counts[:, None]
        odd = (within & ((labels < 0) | (labels >= x.shape[-1]))).any(1)
        odd |= (self.counts < 0) | (self.counts > width)
        odd |= (self.steps < 0) | (self.steps > x.shape[1])
        self.odd = odd
        self.counts = np.where(odd, 0, self.counts)
        self.steps = np.where(odd, 0, self.steps)
        self.states = np.full((samples, 2 * width + 1), blank)
        self.states[:, 1::2] = np.where(within & ~odd[:, None], labels, blank)
        before = np.pad(self.states, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
        self.skips = (self.states != before) & (np.arange(2 * width + 1) % 2 == 1)
        self.skips[:, :2] = False
        self.logs = _log_probabilities(x)
        self.rows: list[Array] = []  # after each step
        self.parts: list[list[Array]] = []  # of each step, before its class
        self._run()

    def _run(self) -> None:
        row = np.full(self.states.shape, -inf)
        row[:, 0] = 0.0
        for step in range(self.logs.shape[1]):
            parts = [row, _later(row, 1)]
            parts.append(np.where(self.skips, _later(row, 2), -inf))
            if not step:  # the first label, or the blank before it
                parts = [row, parts[1], np.full_like(row, -inf)]
            emitted = np.take_along_axis(self.logs[:, step], self.states, 1)
            new = np.logaddexp.reduce(parts) + emitted
            row = np.where((step < self.steps)[:, None], new, row)
            self.parts.append(parts)
            self.rows.append(row)

    def ends(self) -> tuple[Array, Array]:
        """Return the losses, and the share of each of the last states in them."""
        places = np.arange(self.states.shape[1])
        last = 2 * self.counts[:, None]
        final = (places == last) | ((places == last - 1) & (self.steps > 0)[:, None])
        row = np.full(self.states.shape, -inf)
        row[:, 0] = 0.0
        row = np.where(final, self.rows[-1] if self.rows else row, -inf)
        loss = -np.logaddexp.reduce(row, 1)
        share = np.exp(row + loss[:, None])
        return np.where(self.odd, np.nan, loss), share


def _ctc_loss(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    with np.errstate(invalid="ignore"):
        outputs[0][...] = _Lattice(a["blank"], inputs).ends()[0]


def _ctc_loss_gradient(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    """Go back through the sums, each of which is a softmax of its terms."""
    x, dy, (dx,) = inputs[0], inputs[4], outputs
    with np.errstate(invalid="ignore"):
        lattice = _Lattice(a["blank"], inputs)
        loss, slope = lattice.ends()
        shares = np.zeros(x.shape)
        samples = np.arange(len(x))[:, None]
        for step in reversed(range(x.shape[1])):
            live = (step < lattice.steps)[:, None]
            np.add.at(
                shares[:, step], (samples, lattice.states), np.where(live, slope, 0)
            )
            parts = lattice.parts[step]
            total = np.logaddexp.reduce(parts)
            back = np.zeros_like(slope)
            for by, part in enumerate(parts):
                weight = np.where(total > -inf, np.exp(part - total), 0.0)
                moved = np.pad(slope * weight, ((0, 0), (0, by)))[:, by:]
                back += moved
            slope = np.where(live, back, slope)
        live = (np.arange(x.shape[1]) < lattice.steps[:, None])[..., None]
        made = np.where(live, np.exp(lattice.logs) - shares, 0.0)
        unknown = ~np.isfinite(loss)[:, None, None] & (
            live | lattice.odd[:, None, None]
        )
        dx[...] = np.where(unknown, np.nan, made * dy[:, None, None])


def _gradient(adjoint: Adjoint) -> Sequence[int | None]:
    (dx,) = adjoint.emit(
        "ctc_loss_gradient", (*adjoint.inputs, adjoint.dy), adjoint.attributes
    )
    return dx, None, None, None


def _flops(inputs: Sequence[Spec], _: Sequence[Spec], __: Attributes) -> int:
    """Count a few operations for each class, and for each state, of each step."""
    logits, labels = inputs[:2]
    width = labels.shape[-1]
    return 4 * logits.size + 12 * logits.shape[0] * logits.shape[1] * (2 * width + 1)


def _infer_search(inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
    _check("ctc_beam_search", inputs, attributes)
    logits, steps = inputs
    samples, length, _ = logits.shape
    require(
        steps.shape == (samples,),
        f"ctc_beam_search: steps of shape {steps.shape} do not fit {logits.shape}",
    )
    width, top = attributes["beam_width"], attributes["top_paths"]
    require(
        1 <= top <= width,
        f"ctc_beam_search: {top} paths of {width}: at least 1, and at most the width",
    )
    return [
        Spec((samples, top, length), "int32"),
        Spec((samples, top), logits.dtype, "scores"),
    ]


def _search_flops(inputs: Sequence[Spec], _: Sequence[Spec], a: Attributes) -> int:
    return 4 * inputs[0].size * int(a["beam_width"])


def _best_paths(
    logs: Array, blank: int, width: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the best beginnings after all steps, with their logarithms."""
    # By labels: the logarithms for a blank at the end, and for a label.
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -inf)}
    for row in logs:
        made: dict[tuple[int, ...], list[float]] = {path: [-inf] * 2 for path in beams}
        for path, (of_blank, of_label) in beams.items():
            whole = np.logaddexp(of_blank, of_label)
            made[path][0] = np.logaddexp(made[path][0], whole + row[blank])
            for label, value in enumerate(row):
                if label == blank:
                    continue
                longer, start = (*path, label), whole
                if path and path[-1] == label:  # a repeated one needs a blank
                    own = made[path]
                    own[1] = np.logaddexp(own[1], of_label + value)
                    start = of_blank
                other = made.setdefault(longer, [-inf, -inf])
                other[1] = np.logaddexp(other[1], start + value)
        order = sorted(made, key=lambda path: -np.logaddexp.reduce(made[path]))
        beams = {path: (made[path][0], made[path][1]) for path in order[:width]}
    return [(float(np.logaddexp(*ends)), path) for path, ends in beams.items()]


def _ctc_beam_search(a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
    (x, steps), (paths, scores) = inputs, outputs
    paths[...], scores[...] = -1, -inf
    for sample in range(len(x)):
        count = int(steps[sample])
        if not 0 <= count <= x.shape[1]:
            scores[sample] = np.nan
            continue
        logs = _log_probabilities(x[sample, :count])
        found = _best_paths(logs, a["blank"], a["beam_width"])[: a["top_paths"]]
        for place, (score, path) in enumerate(found):
            if score > -inf:
                scores[sample, place] = score
                paths[sample, place, : len(path)] = path


register(
    OpType(
        "ctc_loss",
        4,
        _infer,
        _ctc_loss,
        gradient=_gradient,
        flops=_flops,
        float32_inputs=None,
        contraction=True,
    ),
    OpType(
        "ctc_loss_gradient",
        5,
        _infer_gradient,
        _ctc_loss_gradient,
        flops=_flops,
        float32_inputs=None,
        contraction=True,
    ),
    OpType(
        "ctc_beam_search",
        2,
        _infer_search,
        _ctc_beam_search,
        flops=_search_flops,
        float32_inputs=None,
        contraction=True,
    ),
)
