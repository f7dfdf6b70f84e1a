"""Models as estimators of scikit-learn, with Keras's names.

They take part in pipelines, searches of parameters and cross-validation. The module
needs scikit-learn, and is loaded when one of its names is first used.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.errors import MissingDependencyError
from memcfg.nn._keras_names import absent
from memcfg.nn._model import Model
from memcfg.nn.models import clone_model

try:
    from sklearn import get_config
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils.multiclass import type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingDependencyError(
        "memcfg.nn.wrappers needs scikit-learn 1.6 or later: pip install "
        f"'memcfg[sklearn]' ({error})"
    ) from None

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt

__all__ = ["SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer"]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)


class _Wrapper(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A model, or a function that makes one, as an estimator."""

    def __init__(
        self,
        model: Any,
        warm_start: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        fit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.warm_start = warm_start
        self.model_kwargs = model_kwargs
        self.fit_kwargs = fit_kwargs

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of an estimator: fits differ by their seed."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def __sklearn_clone__(self) -> Self:
        """Return an estimator that is not fitted, with a copy of the model."""
        model = self.model
        if isinstance(model, Model):
            model = copy.deepcopy(model)
        given = (model, self.warm_start, self.model_kwargs, self.fit_kwargs)
        return type(self)(*given)

    @property
    def epoch_(self) -> int:
        """The number of epochs of the last `fit`; 0 before."""
        history = getattr(self, "history_", None)
        return 0 if history is None else len(history.epoch)

    def set_fit_request(self, **kwargs: Any) -> Self:
        """Say which metadata `fit` takes, where scikit-learn routes metadata.

        Parameters
        ----------
        **kwargs : bool, str or None
            For the name of an argument of `Model.fit`: whether it is passed, or the
            name under which it is.

        Returns
        -------
        object
            The estimator.

        Raises
        ------
        RuntimeError
            If scikit-learn does not route metadata.
        """
        if not get_config()["enable_metadata_routing"]:
            raise RuntimeError(
                "metadata is not routed: "
                "sklearn.set_config(enable_metadata_routing=True) comes first"
            )
        self._metadata_request = self._get_metadata_request()
        for name, alias in kwargs.items():
            self._metadata_request.fit.add_request(param=name, alias=alias)
        return self

    def fit(self, X: Any, y: Any, **kwargs: Any) -> Self:
        """Train a model on samples and their targets.

        Parameters
        ----------
        X : array_like
            Samples, of shape ``(n, features)``.
        y : array_like
            Targets, of shape ``(n,)`` or ``(n, outputs)``.
        **kwargs
            Arguments of `Model.fit`, such as ``epochs``, which go before those of
            `fit_kwargs`.

        Returns
        -------
        object
            The estimator.

        Raises
        ------
        RuntimeError
            If the model is not compiled with a loss.
        TypeError, ValueError
            If the samples or targets are invalid, or as `Model.fit` does.
        """
        before = dict(self.__dict__)
        try:
            self._fit(X, y, {**(self.fit_kwargs or {}), **kwargs})
        except BaseException:  # labels and features of these data are not the model's
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit(self, X: Any, y: Any, options: dict[str, Any]) -> None:
        several = None if y is None else np.asarray(y).shape[1:]
        X, y = validate_data(self, X, y, multi_output=several not in (None, (), (1,)))
        targets = self._targets(y)
        model = self._made(X, targets)
        if model.loss is None:
            raise RuntimeError(
                f"{type(self).__name__}: the model is not compiled, or without a loss: "
                "call compile(optimizer, loss) before"
            )
        self.history_ = model.fit(X, targets, **options)
        self.model_ = model

    def _made(self, X: Any, y: Any) -> Model:
        """Return the model to train: a new one, or with `warm_start` the one before."""
        if self.warm_start and hasattr(self, "model_"):
            return self.model_
        if not isinstance(self.model, Model):
            what = f"{type(self).__name__}: model must be a Model or a function of one"
            if not callable(self.model):
                raise TypeError(f"{what}, got {self.model!r}")
            made = self.model(X=X, y=y, **(self.model_kwargs or {}))
            if not isinstance(made, Model):
                raise TypeError(f"{what}, and the function returned {made!r}")
            return made
        if self.warm_start:
            return self.model
        made = clone_model(self.model)
        compiled = self.model._config
        if compiled is not None:
            self.model._compile_alike(made, compiled.on_oom)
        return made

    def _outputs(self, X: Any) -> Any:
        """Return what the fitted model predicts."""
        check_is_fitted(self)
        return self.model_.predict(validate_data(self, X, reset=False), verbose=0)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the targets of samples.

        Parameters
        ----------
        X : array_like
            Samples, of shape ``(n, features)``.

        Returns
        -------
        numpy.ndarray
            The targets, of the shape of those of `fit`.

        Raises
        ------
        NotFittedError
            Of scikit-learn, before `fit`.
        ValueError
            If the samples are invalid.
        """
        found: npt.NDArray[Any] = self._of_outputs(self._outputs(X))
        return found

    def _targets(self, y: Any) -> Any:
        """Return targets for a model, of two axes."""
        type_of_target(y, raise_unknown=True)
        self._ndim = y.ndim
        return y.reshape(len(y), -1)

    def _of_outputs(self, outputs: Any) -> Any:
        """Return outputs of a model in the form of the targets."""
        flat = self._ndim == 1 and outputs.ndim == 2
        return outputs.squeeze(axis=1) if flat else outputs


class SKLearnClassifier(ClassifierMixin, _Wrapper):  # type: ignore[misc]
    """A model as a classifier of scikit-learn.

    The model's targets are one-hot rows. The class of its largest output is predicted.

    Parameters
    ----------
    model : Model or callable
        A compiled model, which is cloned for each `fit`, or a function that returns
        one. It is called with ``X`` and ``y``, the one-hot rows, and `model_kwargs`.
    warm_start : bool, default False
        Whether `fit` goes on with the model of the `fit` before, or with the model that
        is given.
    model_kwargs : dict, optional
        Further arguments of the function.
    fit_kwargs : dict, optional
        Arguments of `Model.fit`; those of the estimator's own `fit` go before them.

    Attributes
    ----------
    model_ : Model
        The trained model.
    history_ : History
        What `Model.fit` returned.
    classes_ : numpy.ndarray
        The classes, in the order of the model's outputs.

    Examples
    --------
    >>> import memcfg as mc
    >>> from sklearn.datasets import make_classification
    >>> def network(X, y):
    ...     layers = [mc.nn.Dense(8, "relu"), mc.nn.Dense(y.shape[1], "softmax")]
    ...     model = mc.nn.Sequential([mc.nn.Input(X.shape[1:]), *layers])
    ...     model.compile("adam", "categorical_crossentropy")
    ...     return model
    >>> X, y = make_classification(random_state=0)
    >>> classifier = mc.nn.wrappers.SKLearnClassifier(network)
    >>> classifier.fit(X, y, epochs=2, verbose=0).predict(X).shape
    (100,)
    """

    classes_: npt.NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of an estimator."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the outputs of the model.

        Parameters
        ----------
        X : array_like
            Samples, of shape ``(n, features)``.

        Returns
        -------
        numpy.ndarray
            One row of outputs for each sample, in the order of `classes_`.

        Raises
        ------
        NotFittedError
            Of scikit-learn, before `fit`.
        ValueError
            If the samples are invalid.
        """
        outputs: npt.NDArray[np.float32] = self._outputs(X)
        return outputs

    def _targets(self, y: Any) -> Any:
        """Return one-hot rows of classes."""
        kind = type_of_target(y)
        if kind not in ("binary", "multiclass"):
            raise ValueError(
                "SKLearnClassifier takes one class a sample. Unknown label type: "
                f"{kind}"
            )
        self._ndim = y.ndim
        classes, codes = np.unique(y, return_inverse=True)
        goes_on = self.warm_start and hasattr(self, "model_")
        if goes_on and not np.array_equal(classes, self.classes_):
            raise ValueError(
                "SKLearnClassifier: warm_start goes on with a model of the classes "
                f"{self.classes_}, and y has {classes}"
            )
        self.classes_ = classes
        if len(self.classes_) == 1:
            raise ValueError(
                "SKLearnClassifier: all samples are of one class, and a classifier "
                "needs two"
            )
        return np.eye(len(self.classes_), dtype=np.float32)[codes.ravel()]

    def _of_outputs(self, outputs: Any) -> Any:
        """Return the class of the largest output, of the shape of the targets."""
        found = self.classes_[outputs.argmax(axis=-1)]
        return found if self._ndim == 1 else found[:, None]


class SKLearnRegressor(RegressorMixin, _Wrapper):  # type: ignore[misc]
    """A model as a regressor of scikit-learn.

    Parameters
    ----------
    model : Model or callable
        A compiled model, which is cloned for each `fit`, or a function that returns
        one. It is called with ``X`` and ``y``, the targets with two axes, and
        `model_kwargs`.
    warm_start : bool, default False
        Whether `fit` goes on with the model of the `fit` before, or with the model that
        is given.
    model_kwargs : dict, optional
        Further arguments of the function.
    fit_kwargs : dict, optional
        Arguments of `Model.fit`; those of the estimator's own `fit` go before them.

    Attributes
    ----------
    model_ : Model
        The trained model.
    history_ : History
        What `Model.fit` returned.
    """

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of an estimator."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class SKLearnTransformer(TransformerMixin, _Wrapper):  # type: ignore[misc]
    """A model as a transformer of scikit-learn: its outputs are features.

    Within ``sklearn.frozen.FrozenEstimator``, a pipeline does not train it again.

    Parameters
    ----------
    model : Model or callable
        A compiled model, which is cloned for each `fit`, or a function that returns
        one. It is called with ``X`` and ``y``, the targets with two axes, and
        `model_kwargs`.
    warm_start : bool, default False
        Whether `fit` goes on with the model of the `fit` before, or with the model that
        is given.
    model_kwargs : dict, optional
        Further arguments of the function.
    fit_kwargs : dict, optional
        Arguments of `Model.fit`; those of the estimator's own `fit` go before them.

    Attributes
    ----------
    model_ : Model
        The trained model.
    history_ : History
        What `Model.fit` returned.
    """

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of an estimator."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the outputs of the model.

        Parameters
        ----------
        X : array_like
            Samples, of shape ``(n, features)``.

        Returns
        -------
        numpy.ndarray
            The outputs.

        Raises
        ------
        NotFittedError
            Of scikit-learn, before `fit`.
        ValueError
            If the samples are invalid.
        """
        outputs: npt.NDArray[np.float32] = self._outputs(X)
        return outputs
