"""Attributes: those that mean something work, and no other can be set."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn


def things():
    x = nn.Input((8, 8, 3))
    layers = [
        nn.Conv2D(4, 3),
        nn.MaxPooling2D(),
        nn.AveragePooling2D(),
        nn.BatchNormalization(),
        nn.Activation("relu"),
        nn.ReLU(),
        nn.Dropout(0.5, seed=3),
        nn.Flatten(),
        nn.GlobalAveragePooling2D(),
        nn.Dense(3),
        nn.Add(),
    ]
    return [
        nn.Model(x, nn.Flatten()(x)),
        nn.Sequential([nn.Dense(3)]),
        nn.SGD(0.1, momentum=0.9),
        nn.Adam(),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        nn.Zeros(),
        nn.Ones(),
        nn.RandomNormal(),
        nn.GlorotUniform(),
        nn.HeUniform(seed=1),
        nn.HeNormal(),
        x,
        *layers,
    ]


THINGS = [type(thing).__name__ for thing in things()]


@pytest.mark.parametrize("place", range(len(THINGS)), ids=THINGS)
def test_an_attribute_that_nobody_reads_is_refused(place):
    thing = things()[place]
    kind = type(thing).__name__
    with pytest.raises(
        AttributeError, match=f"^{kind} has no attribute 'lrate' and would"
    ):
        thing.lrate = 3
    assert not hasattr(thing, "lrate")
    assert not hasattr(thing, "__dict__")


def test_a_close_name_is_suggested():
    """As Python does for attributes that are read."""
    with pytest.raises(AttributeError) as caught:
        nn.SGD().learning_rat = 3
    assert caught.value.name == "learning_rat"
    assert isinstance(caught.value.obj, nn.SGD)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda: nn.Dense(3), "units", "is fixed when it is made: its settings"),
        (lambda: nn.Dense(3), "name", "is fixed when it is made"),
        (lambda: nn.Dropout(0.5), "rate", "is fixed when it is made"),
        (lambda: nn.Dropout(0.5, seed=1), "seed", "cannot be set"),
        (lambda: nn.Dense(3), "weight_specs", "cannot be set"),
        (lambda: nn.HeNormal(seed=3), "seed", "is fixed when it is made"),
        (lambda: nn.Zeros(), "seed", "cannot be set"),
        (lambda: nn.SGD(), "momentum", "set learning_rate between steps"),
        (lambda: nn.SGD(), "lr", "set learning_rate between steps"),
        (lambda: nn.SGD(), "iterations", "cannot be set"),
        (lambda: nn.SGD(), "kind", "cannot be set"),
        (lambda: nn.Sequential(), "name", "is fixed when it is made"),
        (lambda: nn.Sequential(), "optimizer", "cannot be set: say it to .* compile"),
        (lambda: nn.Sequential(), "loss", "cannot be set: say it to .* compile"),
        (lambda: nn.Sequential(), "predict", "cannot be set"),
        (lambda: nn.Sequential(), "history", "cannot be set"),
    ],
)
def test_what_cannot_change_says_what_to_do(make, name, words):
    thing = make()
    before = getattr(thing, name, None) if name != "optimizer" else None
    with pytest.raises(AttributeError, match=words):
        setattr(thing, name, 0.5)
    assert (getattr(thing, name, None) if name != "optimizer" else None) == before


def test_models_freeze_their_layers(dense):
    model = dense()
    first, second = model.layers
    assert all(thing.trainable for thing in (model, first, second))
    model.trainable = False
    assert not any(thing.trainable for thing in (model, first, second))
    second.trainable = model.trainable = True
    assert first.trainable is True


class Scaled(nn.Dense):
    """A layer of a user's."""

    early = 1

    def __init__(self, units, scale):
        self.early = scale
        super().__init__(units)
        self.scale = scale


class Clipped(nn.SGD):
    """An optimizer of a user's."""

    def __init__(self):
        super().__init__(0.5)
        self.most = 3


class Named(nn.Sequential):
    """A model of a user's."""

    def __init__(self):
        super().__init__([nn.Dense(4)])
        self.comment = "mine"


def test_users_classes_have_attributes_of_their_own():
    for thing, name in (
        (Scaled(3, 2), "scale"),
        (Clipped(), "most"),
        (Named(), "comment"),
    ):
        setattr(thing, name, "another")
        thing.later = 3
        assert (getattr(thing, name), thing.later) == ("another", 3)
    with pytest.raises(AttributeError, match="is fixed when it is made"):
        Scaled(3, 2).units = 4
    assert "most=3" in repr(Clipped())


class TestStopTraining:
    def batches(self, model, rows, stop):
        """Yield batches of 6 rows; make `model` stop when so many were asked for."""
        for number in range(5):
            if number == stop:
                model.stop_training = True
            yield rows[0][:6], rows[1][:6]

    @pytest.mark.parametrize("stop", [1, 3])
    def test_the_epoch_ends_behind_the_step_of_that_moment(self, dense, rows, stop):
        model = dense()
        model.predict(rows[0], verbose=0)
        data = Slow(lambda: self.batches(model, rows, stop))
        history = model.fit(data, epochs=3, verbose=0, validation_data=rows)
        assert model.stop_training
        assert model.optimizer.iterations == stop + 1
        assert history.epoch == [0]
        assert list(history.history) == ["loss", "val_loss"]

    def test_the_next_fit_begins_anew(self, dense, rows):
        model = dense()
        model.stop_training = True
        assert model.fit(*rows, epochs=2, verbose=0).epoch == [0, 1]
        assert model.stop_training is False

    def test_another_thread_can_end_it(self, dense, rows):
        model = dense()
        started = threading.Event()

        def forever():
            while True:
                started.set()
                yield rows

        def stop():
            started.wait(60)
            model.stop_training = True

        thread = threading.Thread(target=stop)
        thread.start()
        history = model.fit(forever(), steps_per_epoch=10**9, verbose=0)
        thread.join()
        assert history.epoch == [0]
        assert np.isfinite(history.history["loss"][0])


class Slow:
    """Batches that are made when they are asked for, in the thread that trains."""

    async_supported = False

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()
