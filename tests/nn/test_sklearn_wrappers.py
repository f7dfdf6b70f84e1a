"""Models as estimators of scikit-learn: its own checks, and what the wrappers add."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings

import numpy as np
import pytest

import memcfg as mc

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402  what follows needs scikit-learn
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

nn = mc.nn
ESTIMATORS = ("SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer")
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(60, 4)).astype(np.float32)
CLASSES = np.array(["left", "right"])[(ROWS[:, 0] > 0).astype(int)]


def network(X, y, loss="mse", layers=(8,), last="softmax"):
    """A small model for the features and targets, with the same weights each time."""
    nn.set_random_seed(0)
    hidden = [nn.Dense(units, "relu") for units in layers]
    model = nn.Sequential([nn.Input(X.shape[1:]), *hidden, nn.Dense(y.shape[1], last)])
    model.compile(nn.Adam(0.02), loss)
    return model


def classifier(**options):
    more = {"loss": "categorical_crossentropy", "layers": (20, 20)}
    given = {"model_kwargs": more, "fit_kwargs": {"epochs": 5, "verbose": 0}}
    return nn.wrappers.SKLearnClassifier(network, **(given | options))


def regressor(**options):
    given = {"model_kwargs": {"last": "linear"}, "fit_kwargs": {"verbose": 0}}
    return nn.wrappers.SKLearnRegressor(network, **(given | options))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_checks_of_scikit_learn(name):
    """All pass but those that want one number a sample for two classes, as in Keras."""
    estimator = getattr(nn.wrappers, name)(network, fit_kwargs={"verbose": 0})
    if name == "SKLearnClassifier":
        estimator = classifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, on_fail=None)
    failed = {each["check_name"] for each in found if each["status"] == "failed"}
    wanted = {"check_classifiers_classes", "check_classifiers_train"}
    assert failed <= (wanted if name == "SKLearnClassifier" else set())
    assert sum(each["status"] == "passed" for each in found) >= 39


def test_a_classifier_learns_its_classes():
    estimator = classifier().fit(ROWS, CLASSES, epochs=30)
    assert estimator.epoch_ == 30
    assert estimator.classes_.tolist() == ["left", "right"]
    assert estimator.score(ROWS, CLASSES) > 0.9
    outputs = estimator.decision_function(ROWS)
    np.testing.assert_array_equal(outputs, estimator.model_.predict(ROWS, verbose=0))
    chosen = estimator.classes_[outputs.argmax(axis=1)]
    np.testing.assert_array_equal(estimator.predict(ROWS), chosen)
    twin = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(twin.predict(ROWS), chosen)


def test_a_regressor_has_the_model_s_numbers():
    targets = ROWS @ np.float32([[1, 2], [0, 1], [1, 0], [3, 1]])
    estimator = regressor().fit(ROWS, targets, epochs=2)
    model = network(ROWS, targets, last="linear")
    history = model.fit(ROWS, targets, epochs=2, verbose=0)
    assert estimator.history_.history == history.history
    np.testing.assert_array_equal(
        estimator.predict(ROWS), model.predict(ROWS, verbose=0)
    )
    single = regressor().fit(ROWS, targets[:, 0])
    assert single.predict(ROWS).shape == (60,)


def test_weights_of_samples_reach_fit():
    targets = ROWS[:, 0]
    weights = np.zeros(60, np.float32)
    weights[:30] = 2
    made = regressor().fit(ROWS, targets, sample_weight=weights, epochs=1)
    model = network(ROWS, targets[:, None], last="linear")
    model.fit(ROWS, targets[:, None], sample_weight=weights, verbose=0)
    np.testing.assert_array_equal(made.model_.get_weights()[0], model.get_weights()[0])


def test_a_search_and_a_pipeline():
    grid = GridSearchCV(
        classifier(), {"model_kwargs": [{"layers": (4,)}, {"layers": (16, 16)}]}, cv=2
    )
    grid.fit(ROWS, CLASSES)
    assert len(grid.cv_results_["mean_test_score"]) == 2
    more = {"model_kwargs": {"last": "linear"}, "fit_kwargs": {"verbose": 0}}
    features = nn.wrappers.SKLearnTransformer(network, **more)
    pipe = make_pipeline(StandardScaler(), features, classifier())
    assert pipe.fit(ROWS, (CLASSES == "left").astype(int)).predict(ROWS).shape == (60,)


def test_a_model_is_cloned_and_a_warm_start_goes_on():
    targets = ROWS[:, 0]
    model = network(ROWS, ROWS[:, :1], last="linear")
    before = model.get_weights()
    cold = regressor()
    cold.model = model
    cold.fit(ROWS, targets, epochs=1)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert cold.model_ is not model
    warm = nn.wrappers.SKLearnRegressor(model, warm_start=True)
    warm.fit(ROWS, targets, verbose=0).fit(ROWS, targets, verbose=0)
    assert warm.model_ is model
    assert model.optimizer.iterations == 4
    copied = clone(warm)
    assert copied.warm_start
    assert copied.model is not model
    np.testing.assert_array_equal(copied.model.get_weights()[0], model.get_weights()[0])
    again = regressor(warm_start=True)
    first = again.fit(ROWS, targets).model_
    assert again.fit(ROWS, targets).model_ is first


def test_what_is_refused():
    bare = nn.Sequential([nn.Input((4,)), nn.Dense(1)])
    with pytest.raises(RuntimeError, match="not compiled"):
        nn.wrappers.SKLearnRegressor(bare).fit(ROWS, ROWS[:, 0])
    with pytest.raises(ValueError, match="all samples are of one class"):
        classifier().fit(ROWS, np.ones(60, int))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(ROWS, ROWS[:, 0])
    with pytest.raises(sklearn.exceptions.NotFittedError):
        regressor().predict(ROWS)
    assert regressor().epoch_ == 0
    with pytest.raises(RuntimeError, match="enable_metadata_routing=True"):
        regressor().set_fit_request(sample_weight=True)


def test_a_refused_fit_leaves_the_estimator_as_it_was():
    made = classifier().fit(ROWS, ROWS[:, 0] > 0)
    before = made.predict(ROWS)
    for rows, options in ((ROWS, {"epochs": -3}), (ROWS[:, :1], {"epochs": -3})):
        with pytest.raises(ValueError, match="epochs must be positive"):
            made.fit(rows, np.where(ROWS[:, 0] > 0, 6, 5), **options)
        assert made.classes_.dtype == bool
        np.testing.assert_array_equal(made.predict(ROWS), before)


def test_what_makes_no_model_is_refused():
    for model in (None, lambda X, y: None):
        with pytest.raises(TypeError, match="model must be a Model or a function"):
            nn.wrappers.SKLearnClassifier(model).fit(ROWS, ROWS[:, 0] > 0)
    made = classifier(warm_start=True).fit(ROWS, ROWS[:, 0] > 0)
    with pytest.raises(ValueError, match="warm_start goes on with a model of the"):
        made.fit(ROWS, np.where(ROWS[:, 0] > 0, 6, 5))


def test_metadata_is_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        made = regressor().set_fit_request(sample_weight=True)
        assert made.get_metadata_routing().fit.requests == {"sample_weight": True}


def test_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "memcfg.nn.wrappers")
    monkeypatch.delattr(nn, "wrappers")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(mc.errors.MissingDependencyError, match=r"memcfg\[sklearn\]"):
        importlib.import_module("memcfg.nn.wrappers")
    with pytest.raises(AttributeError, match=r"needs scikit-learn 1\.6 or later"):
        _ = nn.wrappers
