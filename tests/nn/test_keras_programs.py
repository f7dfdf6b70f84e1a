"""Programs of Keras's users run here; one line says where `keras` is from."""

from __future__ import annotations

import ast
import contextlib

import pytest
from keras_programs import FILES, IMPORT, PROGRAMS, run

from memcfg.nn import callbacks, layers, losses, optimizers
from memcfg.nn.losses import get_loss

HERE = (IMPORT, "from memcfg import nn as keras\n")
ENDINGS = (('.keras"', '.memcfg"'), (".weights.h5", ".weights.safetensors"))
ROOMS = (layers, losses, optimizers, optimizers.schedules, callbacks)
NOT_KERAS = {
    *("LocalResponseNormalization", "PerformanceListener", "ScoreIterationListener"),
    *("Optimizer", "LearningRateSchedule", "CallbackList", "Target", "SymbolicTensor"),
    *("PositionEmbedding", "MaxUnpooling2D"),
}


def words(text):
    """Names after a dot, and classes of losses and optimizers that strings name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for get in (get_loss, optimizers.get):
                with contextlib.suppress(ValueError):
                    yield type(get(node.value)).__name__


def test_they_are_many_and_import_keras_in_one_line():
    assert len(PROGRAMS) >= 150
    for text in PROGRAMS.values():
        assert text.count(IMPORT) == text.count("import keras") == 1
        assert "from keras" not in text
        assert "assert" in text


def test_every_layer_loss_optimizer_schedule_and_callback_is_in_one():
    texts = [*PROGRAMS.values(), *FILES.values()]
    used = {word for text in texts for word in words(text)}
    classes = {
        kind: {name for name in room.__all__ if getattr(room, name) is kind}
        for room in ROOMS
        for kind in map(room.__dict__.get, room.__all__)
        if isinstance(kind, type)
    }
    unused = {kind.__name__ for kind, names in classes.items() if not names & used}
    assert unused <= NOT_KERAS


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    run(name, [HERE])


@pytest.mark.parametrize("name", FILES)
def test_program_whose_files_have_other_endings(name):
    """Beside the fifty, since more than one line differs."""
    run(name, [HERE, *ENDINGS])
