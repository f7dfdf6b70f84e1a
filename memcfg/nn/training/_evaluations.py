"""Evaluators that see each batch of a pass, and the outputs that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memcfg._checks import unknown
from memcfg.nn.training._predictions import Rows
from memcfg.runtime import aligned_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn._nesting import Structure
    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.inputs._samples import Wanted
    from memcfg.nn.training._session import Session

__all__ = ["Evaluations", "Evaluator"]


class Evaluator(Protocol):
    """What evaluates a model's predictions, such as those of `memcfg.evaluation`.

    `mask` is passed if layers mask steps of an output, and `sample_weight` if the data
    has weights; an evaluator without such an argument serves where there are none.
    """

    def eval(self, labels: Any, predictions: Any, **others: Any) -> Any:
        """Add a batch; arrays may be kept."""


class Evaluations:
    """The evaluators of a pass, by output once the outputs are known.

    Parameters
    ----------
    given : sequence
        Evaluators, for a model of one output, or dicts with an evaluator or a list of
        them for outputs by name or index.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        if not given:
            raise ValueError(
                "there is no evaluator: pass one, such as evaluation.Evaluation()"
            )
        self._given = [_checked(each) for each in given]
        self._by_output: dict[int, list[Evaluator]] = {}
        self._places: tuple[int, ...] = ()  # of outputs whose y a batch has

    def wanted(self, session: Session, *, labelled: bool) -> Wanted:
        """Return what batches must contain: y for a loss, or for evaluators alone."""
        wanted = session.wanted(labelled=labelled)
        self._settle(wanted.targets)
        if not labelled:
            wanted = wanted._replace(places=tuple(sorted(self._by_output)))
        self._places = wanted.places
        for place in self._by_output:
            if place not in self._places:
                name = wanted.targets.names[place]
                raise ValueError(
                    f"evaluate reads no y for the output {name!r}, which has no loss: "
                    "use do_evaluation"
                )
        return wanted

    def step(self, session: Session, kind: str, batch: Batch) -> tuple[Any, ...]:
        """Run a batch, have its outputs evaluated, and return losses and metrics."""
        values, add = self.run(session, kind, batch, session.step)
        add()
        return values

    def run(
        self,
        session: Session,
        kind: str,
        batch: Batch,
        step: Callable[..., tuple[bool, tuple[Any, ...]]],
    ) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """Run a batch by a step of a session.

        Returns losses and metrics, and a function that has the outputs evaluated.
        """
        outputs = session.network_at(batch.lengths).outputs
        masks = session.masks(batch.lengths)
        rows: list[Any] = [
            aligned_empty((batch.size, *each.sample_shape), np.dtype(each.sample_dtype))
            for each in outputs
        ]
        masked = [np.empty((batch.size, *shape), np.float32) for shape in masks.shapes]
        _, values = step(
            kind,
            batch,
            results=Rows([*rows, *masked], 0, batch.size),
            with_outputs=kind != "predict" or bool(masked),
        )

        def add() -> None:
            given = [masked[i] if i is not None else None for i in masks.places]
            self._add(batch, rows, given)

        return values, add

    def _add(self, batch: Batch, outputs: Sequence[Any], masks: Sequence[Any]) -> None:
        """Have the outputs of a batch evaluated, with the masks that layers gave."""
        assert batch.targets is not None  # sources keep them for evaluators
        ys, weights = batch.targets
        read = [each.read(batch.rows) for each in ys]
        weighing = [each.read(batch.rows) for each in weights]
        for place, evaluators in self._by_output.items():
            number = self._places.index(place)
            mask = masks[place]
            if number < len(batch.masks) and batch.masks[number] is not None:
                mask = _joined(np.asarray(batch.masks[number]), mask)
            weight = None
            if weighing:
                weight = weighing[0 if len(weighing) == 1 else number]
            _evaluate(
                evaluators,
                read[number],
                outputs[place],
                mask,
                weight,
            )

    def add(self, gives: Structure, y: Any, outputs: Any, weight: Any) -> None:
        """Evaluate the outputs of a step of one's own."""
        self._settle(gives)
        predictions = gives.unpack(outputs, "the result of predict_step", "outputs")
        if y is None:
            raise ValueError("a batch is (x, y), samples and labels; this one is x")
        ys = gives.unpack(y, "y", "outputs")
        several = isinstance(weight, list | tuple | dict)
        weights = (
            gives.unpack(weight, "sample_weight", "outputs")
            if several
            else [weight] * len(ys)
        )
        for place, evaluators in self._by_output.items():
            given = np.asarray(predictions[place])
            _evaluate(evaluators, ys[place], given, None, weights[place])

    def _settle(self, outputs: Structure) -> None:
        """Find the outputs that evaluators are of."""
        if self._by_output:
            return
        names, found = outputs.names, dict[int, list[Evaluator]]()
        for each in self._given:
            if not isinstance(each, Mapping):
                if len(names) > 1:
                    shown = ", ".join(map(repr, names))
                    raise ValueError(
                        f"the model has the outputs {shown}: say which one this is of, "
                        f"as in {{{names[0]!r}: {type(each).__name__}()}}"
                    )
                found.setdefault(0, []).append(each)
                continue
            for key, evaluators in each.items():
                found.setdefault(_place(key, names), []).extend(evaluators)
        self._by_output = found


def _place(key: Any, names: Sequence[str]) -> int:
    """Return the index of an output that is given by name or index."""
    if isinstance(key, str):
        if key not in names:
            raise unknown("output", key, names)
        return names.index(key)
    if isinstance(key, bool) or not isinstance(key, int):
        raise TypeError(f"an output is a name or an index, not {key!r}")
    if not 0 <= key < len(names):
        raise ValueError(f"the model has {len(names)} outputs, and none is {key}")
    return key


def _checked(given: Any) -> Any:
    """Return an evaluator, or lists of them by output."""
    if isinstance(given, Mapping):
        return {
            key: [_evaluator(each) for each in several]
            if isinstance(several, list | tuple)
            else [_evaluator(several)]
            for key, several in given.items()
        }
    return _evaluator(given)


def _evaluator(given: Any) -> Any:
    if isinstance(given, type) or not callable(getattr(given, "eval", None)):
        what, hint = repr(given), "pass one of memcfg.evaluation, such as Evaluation()"
        if hasattr(given, "shape"):
            what = f"an array of shape {given.shape}"
            hint = "samples and labels are one argument, (x, y)"
        raise TypeError(
            f"an evaluator has a method eval(labels, predictions), and {what} has "
            f"none: {hint}"
        )
    return given


def _joined(labels: Any, layers: Any) -> Any:
    """Return a mask of labels, without the steps that layers hide.

    As in DL4J, that of labels decides where the two are of different shapes.
    """
    return labels * layers if np.shape(layers) == labels.shape else labels


def _evaluate(
    evaluators: Sequence[Evaluator], labels: Any, outputs: Any, mask: Any, weight: Any
) -> None:
    given = {"mask": mask, "sample_weight": weight}
    given = {name: each for name, each in given.items() if each is not None}
    for each in evaluators:
        each.eval(labels, outputs, **given)
