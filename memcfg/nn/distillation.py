"""Knowledge distillation: a small model learns from a large one, with Keras's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn import losses, ops, tree
from memcfg.nn._argument_checks import real
from memcfg.nn._keras_names import absent
from memcfg.nn._model import Model
from memcfg.nn._nested import Nested
from memcfg.nn.exchange._configs import _Described
from memcfg.nn.metrics import Mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.config import DTypePolicy

__all__ = [
    "DistillationLoss",
    "Distiller",
    "FeatureDistillation",
    "LogitsDistillation",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_FINAL = "final_output"  # the outputs of a model among those of its layers


def _losses_of(given: Any, kind: str) -> Any:
    """Return nested losses with names resolved; ValueError if all are None."""

    def resolved(each: Any) -> Any:
        if isinstance(each, str):
            return losses.get_loss(each)
        if each is not None and not callable(each):
            raise TypeError(f"{kind}: a loss is a name, a Loss or None, got {each!r}")
        return each

    made = tree.map_structure(resolved, given)
    if all(each is None for each in tree.flatten(made)):
        raise ValueError(f"{kind}: at least one loss must not be None, got {given!r}")
    return made


def _summed(
    loss: Any, term: Callable[[Any, Any, Any], Any], teacher: Any, student: Any
) -> Any:
    """Return the sum of a term over nested losses and outputs, without None."""
    made = tree.map_structure(term, loss, teacher, student)
    first, *others = [each for each in tree.flatten(made) if each is not None]
    for each in others:
        first = first + each
    return first


class DistillationLoss(_Described):
    """Base class of what a student's outputs are to be like.

    A subclass overrides `compute_loss`.

    Examples
    --------
    >>> import memcfg as mc
    >>> class Near(mc.nn.distillation.DistillationLoss):
    ...     def compute_loss(self, teacher_outputs, student_outputs, **kwargs):
    ...         return mc.nn.ops.mean((teacher_outputs - student_outputs) ** 2)
    """

    def compute_loss(
        self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any
    ) -> Any:
        """Return the loss of a batch.

        Parameters
        ----------
        teacher_outputs, student_outputs : SymbolicTensor, or list or dict of them
            The outputs of both models.
        **kwargs
            What a subclass takes.

        Returns
        -------
        SymbolicTensor
            A scalar.

        Raises
        ------
        NotImplementedError
            In the base class.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define compute_loss(teacher_outputs, "
            "student_outputs)"
        )

    def validate_outputs(self, teacher_outputs: Any, student_outputs: Any) -> None:
        """Raise ValueError if the outputs are not nested alike.

        Parameters
        ----------
        teacher_outputs, student_outputs : SymbolicTensor, or list or dict of them
            The outputs of both models.

        Raises
        ------
        ValueError
            If one has lists or dicts that the other has not.
        """
        tree.assert_same_structure(teacher_outputs, student_outputs)

    def validate_model_compatibility(self, teacher: Model, student: Model) -> None:
        """Raise ValueError if the loss cannot be computed of the models.

        Parameters
        ----------
        teacher, student : Model
            The models.
        """


class FeatureDistillation(DistillationLoss):
    """The difference of what layers within both models compute.

    Parameters
    ----------
    loss : str or Loss, or list or dict of them, default "mse"
        The loss, or one for each output, of which some may be None.
    teacher_layer_name, student_layer_name : str, optional
        The layers; None: the outputs of the model.

    Raises
    ------
    TypeError, ValueError
        If a loss is unknown or is none, or all are None.

    References
    ----------
    Romero et al., "FitNets: hints for thin deep nets", ICLR 2015.
    """

    def __init__(
        self,
        loss: Any = "mse",
        teacher_layer_name: str | None = None,
        student_layer_name: str | None = None,
    ) -> None:
        self.loss = _losses_of(loss, "FeatureDistillation")
        self.teacher_layer_name = teacher_layer_name
        self.student_layer_name = student_layer_name

    def validate_model_compatibility(self, teacher: Model, student: Model) -> None:
        """Raise ValueError if a model has no such layer.

        Parameters
        ----------
        teacher, student : Model
            The models, of which those with a layer's name are between symbolic tensors.

        Raises
        ------
        ValueError
            If a model has no layer of the name, or its own `call`.
        """
        for kind, model, name in (
            ("teacher", teacher, self.teacher_layer_name),
            ("student", student, self.student_layer_name),
        ):
            if name is None:
                continue
            if model._calls_itself or not model.built:
                raise ValueError(
                    f"FeatureDistillation: the {kind} {model.name!r} has no symbolic "
                    f"tensors to read layer {name!r} from: take a Model between Inputs "
                    "and outputs or a Sequential that is built, or leave out the name"
                )
            try:
                model.get_layer(name)
            except ValueError as error:
                raise ValueError(f"in the {kind}: {error}") from None

    def validate_outputs(self, teacher_outputs: Any, student_outputs: Any) -> None:
        """Raise ValueError if outputs and losses are not nested alike.

        Parameters
        ----------
        teacher_outputs, student_outputs : SymbolicTensor, or list or dict of them
            The outputs of both models.

        Raises
        ------
        ValueError
            If one has lists or dicts that another has not.
        """
        super().validate_outputs(teacher_outputs, student_outputs)
        tree.assert_same_structure(self.loss, teacher_outputs)

    def compute_loss(
        self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any
    ) -> Any:
        """Return the sum of the losses of the outputs.

        Parameters
        ----------
        teacher_outputs, student_outputs : SymbolicTensor, or list or dict of them
            What the layers compute.
        **kwargs
            Not read.

        Returns
        -------
        SymbolicTensor
            A scalar.
        """
        del kwargs

        def term(loss: Any, wanted: Any, found: Any) -> Any:
            return None if loss is None else ops.mean(loss(wanted, found))

        return _summed(self.loss, term, teacher_outputs, student_outputs)


class LogitsDistillation(DistillationLoss):
    """The difference of the outputs of both models, softened by a temperature.

    Outputs are logits, which are divided by the temperature. The KL divergence is that
    of their softmax, times the square of the temperature; other losses get the logits.

    Parameters
    ----------
    temperature : float, default 3.0
        The temperature, above zero.
    loss : str or Loss, or list or dict of them, default "kl_divergence"
        The loss, or one for each output, of which some may be None.

    Raises
    ------
    TypeError, ValueError
        If the temperature is no number above zero, a loss is unknown, or all are None.

    Notes
    -----
    Of the name ``"kl_divergence"`` Keras 3.15 takes the divergence of the logits
    themselves, and that of the softmax of ``KLDivergence()``.

    References
    ----------
    Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network",
    arXiv:1503.02531.
    """

    def __init__(self, temperature: float = 3.0, loss: Any = "kl_divergence") -> None:
        self.temperature = real(temperature, "LogitsDistillation: temperature")
        if self.temperature <= 0:
            raise ValueError(
                f"LogitsDistillation: temperature must be above zero, got {temperature}"
            )
        self.loss = _losses_of(loss, "LogitsDistillation")

    def compute_loss(
        self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any
    ) -> Any:
        """Return the sum of the losses of the outputs.

        Parameters
        ----------
        teacher_outputs, student_outputs : SymbolicTensor, or list or dict of them
            The logits of both models.
        **kwargs
            Not read.

        Returns
        -------
        SymbolicTensor
            A scalar.
        """
        del kwargs
        by = self.temperature

        def term(loss: Any, wanted: Any, found: Any) -> Any:
            if loss is None:
                return None
            wanted, found = wanted / by, found / by
            if not isinstance(loss, losses.KLDivergence):
                return ops.mean(loss(wanted, found))
            wanted, found = (ops.softmax(each, axis=-1) for each in (wanted, found))
            return ops.mean(loss(wanted, found)) * by**2

        return _summed(self.loss, term, teacher_outputs, student_outputs)


class Distiller(Model):
    """A student that is trained on targets and on what a teacher returns.

    Both models and the losses are one planned step, in which the teacher has no
    gradients. The distiller's own outputs, and its metrics, are those of the student,
    which is trained in place.

    Parameters
    ----------
    teacher : Model
        The trained model. Its `trainable` is set to False.
    student : Model
        The model to train.
    distillation_losses : DistillationLoss or list of DistillationLoss
        What the student's outputs are to be like.
    distillation_loss_weights : list of float, optional
        The weight of each; None: 1.
    student_loss_weight : float, default 0.5
        The weight of the loss of `compile`, in ``[0, 1]``. That of the sum of the
        others is the rest to 1.
    name : str, default "distiller"
        The name.
    trainable : bool, default True
        As of `Model`.
    dtype : str or DTypePolicy, optional
        As of `Model`.

    Raises
    ------
    TypeError, ValueError
        If a model is none, the models share layers with weights, their inputs or
        outputs differ in shape or dtype, or another argument is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> nn = mc.nn
    >>> teacher, student = (
    ...     nn.Sequential([nn.Input((8,)), nn.Dense(n, "relu"), nn.Dense(3)])
    ...     for n in (64, 4))
    >>> distiller = nn.distillation.Distiller(
    ...     teacher, student, nn.distillation.LogitsDistillation(temperature=4.0))
    >>> distiller.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
    >>> x, y = np.ones((32, 8), np.float32), np.zeros(32, np.int32)
    >>> history = distiller.fit(x, y, verbose=0)
    >>> sorted(history.history)
    ['distillation_loss', 'loss', 'student_loss', 'total_loss']
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        distillation_losses: Any,
        distillation_loss_weights: Sequence[float] | None = None,
        student_loss_weight: float = 0.5,
        name: str = "distiller",
        *,
        trainable: bool = True,
        dtype: str | DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        teacher, student = (
            each.model if isinstance(each, Nested) else each  # of a file
            for each in (teacher, student)
        )
        _check_models(teacher, student)
        share = real(student_loss_weight, "Distiller: student_loss_weight")
        if not 0 <= share <= 1:
            raise ValueError(
                "Distiller: student_loss_weight must be in [0, 1], got "
                f"{student_loss_weight}"
            )
        several = distillation_losses
        several = list(several) if isinstance(several, list | tuple) else [several]
        if not several:
            raise ValueError("Distiller: distillation_losses must not be empty")
        for each in several:
            is_class = isinstance(each, type)
            if is_class or not callable(getattr(each, "compute_loss", None)):
                raise ValueError(
                    "Distiller: distillation_losses are LogitsDistillation(), "
                    "FeatureDistillation() or objects with a compute_loss, got "
                    f"{each!r}"
                )
            each.validate_model_compatibility(teacher, student)
        weights = [1.0] * len(several)
        if distillation_loss_weights is not None:
            if not isinstance(distillation_loss_weights, list | tuple):
                raise TypeError(
                    "Distiller: distillation_loss_weights must be a list, got "
                    f"{distillation_loss_weights!r}"
                )
            weights = [
                real(each, "Distiller: a weight of a loss")
                for each in distillation_loss_weights
            ]
        if len(weights) != len(several):
            raise ValueError(
                f"Distiller: there are {len(weights)} distillation_loss_weights for "
                f"{len(several)} distillation_losses"
            )
        self.teacher = teacher
        self.student = student
        self.distillation_losses = several
        self.distillation_loss_weights = weights
        self.student_loss_weight = share
        teacher.trainable = False
        self.student_loss_tracker = Mean(name="student_loss")
        self.distillation_loss_tracker = Mean(name="distillation_loss")
        self.total_loss_tracker = Mean(name="total_loss")
        self._read_features()

    def _read_features(self) -> None:
        """Make models of the layers that losses name."""
        names: tuple[list[str], list[str]] = ([], [])
        for each in self.distillation_losses:
            for found, side in zip(names, ("teacher", "student"), strict=True):
                name = getattr(each, f"{side}_layer_name", None)
                if name is not None and name not in found:
                    found.append(name)
        self._of_teacher = _reader(self.teacher, names[0])
        self._of_student = _reader(self.student, names[1])

    def compile(  # type: ignore[override]  # Keras's order of arguments
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        metrics: Any = None,
        **options: Any,
    ) -> None:
        """Set the optimizer of the student, and its loss.

        Parameters
        ----------
        optimizer : str or Optimizer, default "adam"
            As of `Model.compile`.
        loss : str or Loss, or list or dict of them
            The loss of the student's outputs and the targets.
        metrics : list of str or Metric, optional
            Metrics of the student's outputs.
        **options
            Other arguments of `Model.compile`.

        Raises
        ------
        ValueError
            If there is no loss, or as of `Model.compile`.
        """
        if loss is None:
            raise ValueError("Distiller.compile needs the loss of the student")
        super().compile(optimizer, loss, metrics=metrics, **options)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs of the student.

        Parameters
        ----------
        inputs : SymbolicTensor, or list or dict of them
            The inputs of the student.
        training : bool, optional
            Whether the model trains.

        Returns
        -------
        SymbolicTensor, or list or dict of them
            The outputs.
        """
        return self.student(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the weighted sum of the student's loss and those of distillation.

        Parameters
        ----------
        x, y : SymbolicTensor, or list or dict of them
            The samples of a batch and their targets.
        y_pred : SymbolicTensor, or list or dict of them
            What the student returns for the samples.
        sample_weight : SymbolicTensor, or list or dict of them, optional
            Weights of samples in the student's loss.
        training : bool, default True
            Whether the batch is one of training.

        Returns
        -------
        SymbolicTensor
            A scalar.

        Raises
        ------
        ValueError
            If a loss of distillation is no scalar, or outputs do not fit it.
        """
        if y_pred is None:
            y_pred = self(x, training=training)
        share = self.student_loss_weight
        total: Any = None
        if share > 0 and y is not None:
            own = super().compute_loss(x, y, y_pred, sample_weight, training)
            self.student_loss_tracker.update_state(own)
            total = own * share
        if share < 1:
            other = self._distilled(x, y_pred, training)
            self.distillation_loss_tracker.update_state(other)
            total = (
                other * (1 - share) if total is None else total + other * (1 - share)
            )
        self.total_loss_tracker.update_state(total)
        return total

    def _distilled(self, x: Any, y_pred: Any, training: bool) -> Any:
        """Return the weighted sum of the losses of distillation."""
        wanted: dict[str, Any] = self._of_teacher(x, training=False)
        found: dict[str, Any] = {}
        if isinstance(self._of_student, Model):
            found = self._of_student(x, training=training)
        total: Any = None
        for each, weight in zip(
            self.distillation_losses, self.distillation_loss_weights, strict=True
        ):
            names = [
                getattr(each, f"{side}_layer_name", None)
                for side in ("teacher", "student")
            ]
            teachers = wanted[names[0] or _FINAL]
            students = y_pred if names[1] is None else found[names[1]]
            each.validate_outputs(teachers, students)
            loss = each.compute_loss(teachers, students)
            if getattr(loss, "shape", ()):
                raise ValueError(
                    f"{type(each).__name__}.compute_loss must return a scalar, got "
                    f"shape {loss.shape}"
                )
            total = loss * weight if total is None else total + loss * weight
        return total


def _reader(model: Model, names: Sequence[str]) -> Any:
    """Return what calls a model, and returns outputs of layers by name."""
    if not names:
        return lambda x, training: {_FINAL: model(x, training=training)}
    ends = {_FINAL: model.output} | {n: model.get_layer(n).output for n in names}
    return Model(model.input, ends, name=f"{model.name}_features")


def _check_models(teacher: Any, student: Any) -> None:
    """Raise if the models' inputs and outputs are not alike, as far as is known."""
    for kind, model in (("teacher", teacher), ("student", student)):
        if not isinstance(model, Model):
            raise ValueError(f"Distiller: the {kind} is a Model, got {model!r}")
    inner = (
        {leaf for each in model._stacked() for _, leaf in each._leaves()}
        for model in (teacher, student)
    )
    shared = sorted(each.name for each in set.intersection(*inner) if each.weights)
    if shared:
        raise ValueError(
            f"Distiller: teacher and student share {', '.join(map(repr, shared))}, and "
            "a teacher is not trained: take a teacher with weights of its own, such as "
            "models.clone_model(teacher) with its weights"
        )
    if not (teacher.built and student.built):
        return
    for what in ("input", "output"):
        first, second = (getattr(model, what) for model in (teacher, student))
        tree.assert_same_structure(first, second)
        for one, other in zip(tree.flatten(first), tree.flatten(second), strict=True):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                raise ValueError(
                    f"Distiller: an {what} of the teacher has shape {one.shape} and "
                    f"dtype {one.dtype}, and that of the student {other.shape} and "
                    f"{other.dtype}"
                )
