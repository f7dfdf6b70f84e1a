"""What errors say: what is wrong in short lines, and what there is to do instead."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import (
    FormatError,
    GraphError,
    InfeasiblePlanError,
    NonFiniteLossError,
    WeightsError,
)

nn = mc.nn
X = np.random.default_rng(0).random((32, 8)).astype("f4")
Y = np.random.default_rng(1).random((32, 3)).astype("f4")
LABELS = np.arange(32) % 3
SPARSE = "sparse_categorical_crossentropy"


def net(loss="mse", out=3, **options):
    model = nn.Sequential([nn.Input((8,)), nn.Dense(out, name="last")], name="net")
    model.compile(options.pop("optimizer", "sgd"), loss, **options)
    return model


def pair():
    a, b = nn.Input((8,), name="a"), nn.Input((4,), name="b")
    h = nn.Concatenate()([a, b])
    ends = {"p": nn.Dense(3, name="p")(h), "q": nn.Dense(1, name="q")(h)}
    model = nn.Model({"a": a, "b": b}, ends, name="pair")
    model.compile("sgd", {"p": "mse", "q": "mse"})
    return model


def fit(model, x=X, y=Y, **options):
    return model.fit(x, y, verbose=0, **options)


class NoCall(nn.Layer):
    pass


class NoSuper(nn.Layer):
    def __init__(self):
        self.units = 3

    def call(self, x):
        return x * 2


class Returns(nn.Layer):
    def call(self, x):
        return None


class Computes(nn.Layer):
    def call(self, x):
        return np.maximum(x, 0)


class ModelNoSuper(nn.Model):
    def __init__(self):
        self.dense = nn.Dense(3)

    def call(self, x):
        return self.dense(x)


class ModelReturns(nn.Model):
    def call(self, x):
        return 3


callbacks = nn.callbacks
dense = nn.Dense(8)


class Weights(nn.Layer):
    """Its weights have one name, and a dtype."""

    def __init__(self, dtype, count=1):
        super().__init__()
        self.kinds, self.count = dtype, count

    def build(self, input_shape):
        for _ in range(self.count):
            self.add_weight((8,), "ones", self.kinds, name="w")

    def call(self, x):
        return x


class Reads(nn.metrics.Metric):
    """It reads what a loss reads, and there is none."""

    def call(self, y_true, y_pred):
        return y_true - y_pred


def rnn(sequences=False):
    return nn.SimpleRNN(2, return_sequences=sequences, go_backwards=sequences)


def steps(layer):
    x = nn.Input((4, 5, 8))
    model = nn.Model(x, nn.TimeDistributed(layer)(x))
    model.compile("sgd", "mse")
    return fit(model, np.zeros((4, 4, 5, 8), "f4"), np.zeros((4, 4, 5, 8), "f4"))


class Takes(nn.Layer):
    """Columns of a weight."""

    def build(self, input_shape):
        self.table = self.add_weight((4, 3))

    def call(self, x):
        return nn.ops.take(self.table, x, 1)


def unread():
    x = nn.Input((8,))
    model = nn.Model(x, {"a": nn.Dense(3)(x), "b": nn.Dense(3)(x)})
    model.compile("sgd", {"a": "mse", "b": None}, metrics={"b": [Reads()]})


def of_steps(**options):
    x = nn.Input((4, 8))
    model = nn.Model(x, nn.Dense(3)(x))
    model.compile("sgd", "mse")
    fit(model, np.zeros((4, 4, 8), "f4"), np.zeros((4, 4, 3), "f4"), **options)


def chain():
    model = nn.Sequential([nn.Dense(3)])
    model.compile("sgd", "mse")
    return model


def weighted(weights):
    x = nn.Input((8,))
    model = nn.Model(x, [nn.Dense(3)(x), nn.Dense(3)(x)])
    model.compile("sgd", ["mse", "mse"], loss_weights=weights)


def no_gradient():
    first = lambda inputs, _: [inputs[0]]  # noqa: E731
    mc.ops.register(mc.ops.OpType("stuck", 1, first, lambda *_: None))

    class Stuck(nn.Layer):
        def trace(self, scope, inputs):
            return scope.apply("stuck", inputs)[0]

    try:
        x = nn.Input((8,))
        model = nn.Model(x, Stuck(name="s")(nn.Dense(3)(x)))
        model.compile("sgd", "mse")
        model.plan(4)
    finally:
        mc.ops.unregister("stuck")


two = {"a": X, "b": X[:, :4]}
targets = {"p": Y, "q": Y[:, :1]}
symbolic = nn.Input((8,), name="here")

TABLE = [
    # labels
    (lambda: fit(net(SPARSE), y=Y.round(0)[:, :2]), ValueError, "one integer a sample"),
    (lambda: fit(net(SPARSE), y=np.eye(3)[LABELS]), ValueError, r"pass y\.argmax\(1\)"),
    (lambda: fit(net(SPARSE), y=LABELS + 1), ValueError, "labels are 0 to 2"),
    (lambda: fit(net(SPARSE), y=Y[:, 0]), ValueError, "whole numbers are read"),
    (lambda: fit(net(SPARSE), y=np.array(["a"] * 32)), TypeError, "numpy.unique"),
    (lambda: fit(net(), y=LABELS), ValueError, "use a sparse categorical loss"),
    (lambda: fit(net(), y=Y[:, :2]), ValueError, r"but the loss reads \(None, 3\)"),
    (lambda: fit(net(), y=Y[:31]), ValueError, "32 samples, y has shape"),
    (lambda: fit(net(), y=None), TypeError, r"fit\(x, y\)"),
    (lambda: fit(net(), y=Y * np.nan), NonFiniteLossError, "values, or indices that"),
    # inputs and outputs
    (lambda: fit(net(), X[:, :5]), ValueError, r"but the model reads \(None, 8\)"),
    (lambda: net().predict(X.astype(str)), TypeError, "array of numbers"),
    (
        lambda: fit(pair(), X, targets),
        TypeError,
        "list of as many arrays or a dict by name",
    ),
    (lambda: fit(pair(), [X] * 3, targets), ValueError, "but x has 3 arrays"),
    (lambda: fit(pair(), {"a": X, "c": X}, targets), ValueError, "x has 'a', 'c'"),
    (lambda: fit(pair(), two, {"p": Y}), ValueError, "y has 'p'"),
    (lambda: pair().compile("sgd", {"p": "mse", "r": "mse"}), ValueError, "'p', 'q'"),
    (lambda: pair().compile("sgd", ["mse"]), ValueError, "give one for each"),
    # weights of samples and classes
    (lambda: fit(net(), sample_weight=np.ones(31)), ValueError, "are 32 samples"),
    (lambda: fit(net(), sample_weight=np.ones((32, 3))), ValueError, "each sample"),
    (lambda: fit(net(), sample_weight="balanced"), TypeError, "not str"),
    (lambda: fit(net(), class_weight=[1, 2]), TypeError, "a dict such as"),
    (
        lambda: fit(net(SPARSE), y=LABELS, class_weight={7: 1.0}),
        ValueError,
        "the class 7, and the model's are 0 to 2",
    ),
    (lambda: fit(pair(), two, targets, class_weight={0: 1.0}), ValueError, "by output"),
    # classes of one's own
    (lambda: NoCall()(symbolic), NotImplementedError, "override `call`"),
    (
        lambda: NoSuper()(symbolic),
        AttributeError,
        r"NoSuper.__init__ must call super\(\)",
    ),
    (
        lambda: Returns()(symbolic),
        TypeError,
        "Returns.call must return one or several symbolic",
    ),
    (lambda: Computes()(symbolic), TypeError, "numpy.maximum cannot be applied"),
    (lambda: X * symbolic, ValueError, "has no batch and would be combined"),
    (lambda: ModelNoSuper().build((None, 8)), AttributeError, "ModelNoSuper.__init__"),
    (lambda: ModelReturns().build((None, 8)), TypeError, "ModelReturns.call returns"),
    (no_gradient, GraphError, "has no gradient: pass gradient to its OpType"),
    # weights
    (lambda: net().set_weights([np.ones((8, 3))]), WeightsError, "2 weights"),
    (lambda: net().set_weights([np.ones(3)] * 2), WeightsError, r"shape \(8, 3\) in"),
    (lambda: nn.Dense(3).set_weights([X]), ValueError, "no weights yet: call it"),
    (lambda: net().layers[0].set_weights("ab"), ValueError, "arrays of numbers"),
    # names
    (lambda: net("categorical_crossentrop"), ValueError, "'categorical_crossentropy'"),
    (lambda: net(metrics=["acc" + "racy"]), ValueError, "did you mean 'accuracy'"),
    (lambda: net(metrics=["f1"]), ValueError, "did you mean 'f1_score'"),
    (lambda: net(optimizer="adm"), ValueError, "did you mean 'adam'"),
    (lambda: net(memory="sqrt"), ValueError, "did you mean 'sqrt_checkpoint'"),
    (lambda: nn.Dense(3, "rellu"), ValueError, "did you mean 'relu'"),
    (lambda: nn.Dense(3, "unequal"), ValueError, "unknown activation"),
    (lambda: nn.Dense(3, np.tanh)(nn.Input((4,))), TypeError, "of memcfg.nn.ops"),
    (lambda: nn.Dense(3, kernel_initializer="glorot"), ValueError, "did you mean 'glo"),
    (lambda: nn.Dense(3, kernel_regularizer="l3"), ValueError, "l1, l2, l1_l2"),
    (lambda: nn.layers.BatchNorm, AttributeError, "use layers.BatchNormalization"),
    # layers, and what they are called on
    (
        lambda: nn.Dense(3, dtype="float16"),
        ValueError,
        "'mixed_bfloat16', not 'float16'",
    ),
    (
        lambda: Weights("float64")(symbolic),
        ValueError,
        "a weight is float32 or int32, got",
    ),
    (lambda: Weights(None, 2)(symbolic), ValueError, "already has a weight named 'w'"),
    (lambda: nn.Dense(3)(symbolic, symbolic), TypeError, "accepts only tensors, got"),
    (lambda: nn.Dense(3)("numbers"), TypeError, "called on symbolic tensors"),
    (
        lambda: nn.Input((8,), batch_shape=(2, 8)),
        ValueError,
        "cannot be combined with shape",
    ),
    (lambda: nn.Bidirectional(rnn(), backward_layer=rnn(True)), ValueError, "the same"),
    (lambda: nn.TimeDistributed(nn.ReLU), TypeError, "got the class ReLU"),
    (lambda: steps(nn.LSTM(2, return_state=True)), ValueError, "has several outputs"),
    (lambda: steps(nn.BatchNormalization()), ValueError, "has moving averages"),
    (lambda: nn.TimeDistributed("relu"), TypeError, "expects a layer, got 'relu'"),
    (
        lambda: Takes()(symbolic),
        ValueError,
        "rows of a weight must be taken along axis=0",
    ),
    # models
    (
        lambda: nn.Model(symbolic),
        TypeError,
        "takes inputs and outputs, or is a subclass",
    ),
    (lambda: net().get_layer(), ValueError, "takes a name or an index"),
    (lambda: net().get_layer(index=7), ValueError, "has 1 layers, none at 7"),
    (lambda: nn.Sequential([nn.Dense(3)]).build((8,)), ValueError, "counts the batch"),
    (lambda: nn.Sequential(nn.Dense(3)), TypeError, "expects a list of layers"),
    (lambda: nn.Sequential("layers"), TypeError, "expects a list of layers, got"),
    (lambda: nn.Sequential([dense, dense]), ValueError, "is already in"),
    (
        lambda: nn.Sequential([nn.ReLU()(symbolic)]),
        TypeError,
        "got the result of a layer",
    ),
    (lambda: fit(chain(), [X, X]), ValueError, "expects 1 input, got 2"),
    (lambda: weighted([1, 2, 3]), ValueError, "has 3 entries for 2 losses"),
    (lambda: unread(), ValueError, "reads what a loss reads"),
    # data
    (lambda: net().predict([X, Y]), ValueError, "."),
    (lambda: fit(pair(), two | {"b": two["b"][:3]}), ValueError, "differ in number"),
    (lambda: fit(net(), sample_weight=["a"] * 32), (TypeError, ValueError), "number"),
    (lambda: of_steps(class_weight={0: 1.0}), ValueError, "one label a sample"),
    # callbacks
    (
        lambda: callbacks.BackupAndRestore(""),
        ValueError,
        "backup_dir must not be empty",
    ),
    (
        lambda: callbacks.LearningRateScheduler(0.1),
        TypeError,
        "schedule must be callable",
    ),
    (
        lambda: callbacks.LambdaCallback(on_epoch_end=3),
        TypeError,
        "must be callable, got 3",
    ),
]


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_what_an_error_says(number):
    call, kind, words = TABLE[number]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert_short(caught.value)


def assert_short(error):
    text = str(error)
    assert max(map(len, text.splitlines())) < 320
    assert not re.search(r"(?<![\w'])_[a-z]\w*|object at 0x", text)


FILES = {
    b"": "truncated or has no header",
    b"hello" * 99: "truncated or has no header",
    b"\x89HDF\r\n\x1a\n" + bytes(99): "is a damaged HDF5 file",
    b"PK\3\4" + bytes(99): "is damaged: File is not a zip file",
    b"\x80\4" + bytes(99): "it is a pickle",
}


@pytest.mark.parametrize("content", FILES)
def test_files_that_hold_no_model(content, tmp_path):
    path = tmp_path / "m.memcfg"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=FILES[content]) as caught:
        nn.models.load_model(path)
    assert_short(caught.value)


def test_files_for_another_function_or_of_another_version(tmp_path):
    model = net(optimizer="adam")
    model.save(tmp_path / "m.memcfg")
    with pytest.raises(WeightsError, match=r"read it with nn\.models\.load_model"):
        model.load_weights(tmp_path / "m.memcfg")
    model.save_weights(tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match="use load_weights"):
        nn.models.load_model(tmp_path / "w.safetensors")
    data = bytearray((tmp_path / "m.memcfg").read_bytes())
    data = data.replace(b"layers.Dense", b"layers.Future"[:12])
    end = 8 + int.from_bytes(data[:8], "little")  # of the header
    at = end + json.loads(data[8:end])["checksums"]["data_offsets"][0]
    data[at : at + 4] = zlib.crc32(data[:end]).to_bytes(4, "little")
    (tmp_path / "m.memcfg").write_bytes(data)
    with pytest.raises(FormatError, match=r"has no class 'layers\.Futur'"):
        nn.models.load_model(tmp_path / "m.memcfg")


def test_memory_that_is_missing_is_told_in_lines():
    held, refused = net(), net(out=512)
    fit(held)
    mc.config.set_memory_limit("CPU:0", "24KiB")
    with pytest.raises(InfeasiblePlanError) as caught:
        refused.plan(32)
    lines = str(caught.value).splitlines()
    assert max(map(len, lines)) < 90
    starts = (
        "net",
        "Requested ",
        "in use ",
        "Largest ",
        "Held by: model",
    )
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == [
        *starts
    ]
    assert lines[5:7] == [
        "close() of a model releases its memory.",
        "Raise the limit or lower the batch size.",
    ]
    assert re.fullmatch(r"The smallest limit that would do is \d+ B \(.*\)\.", lines[7])
