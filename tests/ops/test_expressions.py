"""Expressions: meaning, derivatives, and two evaluations that have the same bits."""

from __future__ import annotations

import math
import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest
from elementwise_cases import operands_of
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import write
from interpreter import interpret
from kernels import run_kernel
from machine import Kernel, engine

import memcfg as mc
from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder, gradients


@pytest.fixture
def new_op():
    """Register op types for one test."""
    made = []

    def register(name, *args, **options):
        made.append(name)
        return ops.elementwise(name, *args, **options)

    yield register
    for name in made:
        if name in {kind.name for kind in ops.op_types()}:
            ops.unregister(name)


ELEMENTWISE = [kind.name for kind in ops.op_types() if kind.formula is not None]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_librarys_own_ops_are_compiled(name):
    """Their text is in the extension, or they would all be interpreted."""
    formula = ops.op_type(name).formula
    compiled = Path(engine.__file__).read_bytes()
    for outputs in formula.cases():
        assert write(outputs, formula.operands).encode() in compiled


def test_an_output_that_is_an_operand_is_read_before_it_is_overwritten(new_op):
    kind = new_op("swap", lambda a, b: (b, a), state=("a", "b"))
    a, b = np.arange(3000, dtype=np.float32), -np.ones(3000, np.float32)
    shapes = [a.shape] * 2
    found = run_kernel("swap", [a, b], shapes, pairs=dict(kind.in_place))
    assert [each.tobytes() for each in found] == [b.tobytes(), a.tobytes()]
    arrays = [a.copy(), b.copy()]
    kind.numpy({}, arrays, arrays)
    assert [each.tobytes() for each in arrays] == [b.tobytes(), a.tobytes()]


def test_no_gradient_flows_into_constants(new_op):
    kind = new_op("miss", lambda t, p: t * p, constants=("t",))
    assert kind.formula.gradients == ["miss_gradient_p"]
    alone = new_op("frozen", lambda t: 2 * t, constants=("t",))
    assert alone.formula.gradients == []
    assert not alone.formula.is_activation
    with pytest.raises(ValueError, match="no operand 'q'"):
        ops.elementwise("none", lambda t: t, constants=("q",))


def test_an_op_of_two_outputs_is_no_activation(new_op):
    new_op("both_signs", lambda x: (x, -x))
    with pytest.raises(ValueError, match="both_signs"):
        mc.nn.Dense(2, activation="both_signs")


def all_floats(step):
    """Every `step`-th of all floats."""
    return np.arange(0, 2**32, step, dtype=np.uint32).view(np.float32)


# The largest error in units in the last place of the result, by a scan of every 9973rd
# float.
@pytest.mark.parametrize(
    ("name", "function", "most"),
    [
        ("exp", np.exp, 1.0),
        ("expm1", np.expm1, 2.5),
        ("log", np.log, 0.9),
        ("log1p", np.log1p, 2.5),
        ("tanh", np.tanh, 1.4),
        ("erf", np.vectorize(math.erf, otypes=[float]), 1.4),
    ],
)
def test_functions_against_float64(new_op, name, function, most):
    new_op(f"{name}_alone", getattr(ops, name))
    x = all_floats(9973)
    (y,) = run_kernel(f"{name}_alone", [x], [x.shape])
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        wanted = exact.astype(np.float32)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(y[~finite], wanted[~finite])
    _, exponent = np.frexp(exact[finite])
    unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    assert (np.abs(y[finite] - exact[finite]) / unit).max() <= most


FORMULAS = {
    "swish": lambda x: x / (1 + ops.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + ops.erf(x / math.sqrt(2))),
    "softplus": lambda x: ops.log(1 + ops.exp(-abs(x))) + ops.maximum(x, 0),
    "soft": lambda x: x / (1 + abs(x)),
    "cubic": lambda x: 1 + x**3 - x**-2 + 2 * x**0.5 * 0,
    "powers": lambda a, b: (a * a + 1) ** b + 2**b - a**0 - (b + 0.1) ** -1,
    "clipped": lambda x: ops.minimum(ops.maximum(x, -1), 2.5) * 3,
    "kinked": lambda x: ops.select(x > 0.7, x * x, ops.select(x <= -1, -x, 4 - x)),
    "of_two": lambda a, b: ops.tanh(a * b) / (b * b + 1) - (a - b) * a,
    "distance": lambda a, b: ops.sqrt(a * a + b * b + 1),
    "weighted": lambda a, b, *, by=0.3, flip=True: a * by - b if flip else b,
    "constant": lambda x: 2.5 + 0 * x,
}


def test_powers_against_float64(new_op):
    """Nearly all are the float that is nearest."""
    new_op("power_alone", lambda a, b: a**b)
    random = np.random.default_rng(0)
    a = np.concatenate([all_floats(99991), np.float32(random.uniform(-2, 2, 40000))])
    b = random.uniform(-30, 30, a.size).astype(np.float32)
    b[::2] = np.rint(b[::2])
    (y,) = run_kernel("power_alone", [a, b], [a.shape])
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) ** b
        wanted = exact.astype(np.float32)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(y[~finite], wanted[~finite])
    _, exponent = np.frexp(exact[finite])
    unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    assert (np.abs(y[finite] - exact[finite]) / unit).max() <= 0.51


@pytest.mark.parametrize("name", FORMULAS)
def test_the_interpreter_computes_what_numpy_means(new_op, name):
    kind = new_op(f"own_{name}", FORMULAS[name])
    for each in (kind.name, *kind.formula.gradients):
        inputs = operands_of(ops.op_type(each), 2500)
        (found,) = run_kernel(each, inputs, [(2500,)])
        expected = np.empty(2500, np.float32)
        with np.errstate(all="ignore"):
            ops.op_type(each).numpy({}, inputs, [expected])
        np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_are_slopes(new_op, name):
    kind = new_op(f"own_{name}", FORMULAS[name])
    generator = np.random.default_rng(5)
    inputs = [generator.uniform(0.2, 2, 40) for _ in kind.formula.operands]
    dy = generator.normal(size=40)

    def run(type_, operands):
        result = np.empty(40)
        ops.op_type(type_).numpy({}, operands, [result])
        return result

    for place, operand in enumerate(kind.formula.operands):
        up, down = (
            [*inputs[:place], inputs[place] + h, *inputs[place + 1 :]]
            for h in (1e-6, -1e-6)
        )
        slope = (run(kind.name, up) - run(kind.name, down)) / 2e-6
        suffix = f"gradient_{operand}" if len(inputs) > 1 else "gradient"
        gradient = f"{kind.name}_{suffix}"
        if gradient not in kind.formula.gradients:
            np.testing.assert_allclose(slope, 0, atol=1e-9)
            continue
        named = dict(zip(kind.formula.operands, inputs, strict=True))
        named |= {"y": run(kind.name, inputs), "dy": dy}
        read = [named[each] for each in ops.op_type(gradient).formula.operands]
        np.testing.assert_allclose(
            run(gradient, read), dy * slope, rtol=1e-6, atol=1e-6
        )


@given(seed=st.integers(0, 2**20), depth=st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_long_chains_of_random_instructions(seed, depth):
    """Many blocks are alive at once, and outputs are made long before the end."""
    random = np.random.default_rng(seed)

    def formula(a, b):
        values = [a, b, a + 1.5]
        for _ in range(depth):
            x, y = (values[i] for i in random.integers(0, len(values), 2))
            choices = (
                ops.maximum(x, y),
                x * 0.5 + y * 0.25,
                ops.select(x < y, y, -x),
                ops.tanh(x - y),
            )
            values.append(choices[random.integers(4)])
        return values[len(values) // 2], values[-1], values[1]

    ops.elementwise("random_chain", formula)
    try:
        inputs = [
            np.random.default_rng(i).normal(size=3000).astype("f4") for i in (0, 1)
        ]
        expected = [np.empty(3000, np.float32) for _ in range(3)]
        ops.op_type("random_chain").numpy({}, inputs, expected)
        for found, wanted in zip(
            run_kernel("random_chain", inputs, [(3000,)] * 3), expected, strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    finally:
        ops.unregister("random_chain")


def test_what_backward_reads():
    reads = {
        kind.name: kind.formula.operands
        for kind in ops.op_types()
        if kind.formula is not None and "_gradient" in kind.name
    }
    assert reads["relu_gradient"] == ("y", "dy")
    assert reads["multiply_gradient_a"] == ("b", "dy")
    assert not [name for name in reads if name.startswith("add")]  # passes dy on


def test_a_name_is_given_once_and_types_travel_by_name(new_op):
    kind = new_op("halved", lambda x: x / 2)
    with pytest.raises(ValueError, match="already an op type 'halved'"):
        ops.elementwise("halved", lambda x: x)
    with pytest.raises(ValueError, match="already an op type 'halved_gradient'"):
        ops.register(
            ops.OpType("new", 1, kind.infer, kind.numpy),
            *[ops.OpType("halved_gradient", 1, kind.infer, kind.numpy)],
        )
    assert "new" not in {each.name for each in ops.op_types()}
    assert pickle.loads(pickle.dumps(kind)) is kind
    ops.unregister("halved")
    for name in ("halved", "halved_gradient"):
        with pytest.raises(GraphError, match="unknown op type"):
            ops.op_type(name)


@pytest.mark.parametrize(
    ("formula", "options", "error", "words"),
    [
        (lambda x: x < 1, {}, TypeError, "not an expression"),
        (lambda x: (x < 1) + 1, {}, TypeError, "true or false"),
        (lambda x: 1 if x < 1 else 0, {}, TypeError, "use memcfg.ops.select"),
        (lambda x: ops.select(x, 1, 0), {}, TypeError, "takes a comparison"),
        (lambda x: ops.select(x < 1, x < 0, 0), {}, TypeError, "between numbers"),
        (lambda x: (x,) * 32, {}, ValueError, "33 operands and outputs, of 32"),
        (lambda x: (x, -x), {"slope": lambda y: y}, ValueError, "a slope is of one"),
        (lambda x, z: x * z, {"slope": lambda y: y}, ValueError, "a slope is of one"),
        (lambda x, *, interpreted: x, {}, ValueError, "attributes of kernels"),
        (lambda x: sum(x * i for i in range(2, 200)), {}, ValueError, "nodes, of 256"),
        (lambda x: ops.rounded(x), {}, TypeError, "dtype of their arrays"),
        (lambda x: "x", {}, TypeError, "not an expression"),
        (lambda x: x + "x", {}, TypeError, "made of numbers"),
        (lambda x: x, {"scalars": ("z",)}, ValueError, "no operand 'z'"),
        (lambda x: x, {"scalars": ("x",)}, ValueError, "no operand that is an array"),
        (lambda y: y, {}, ValueError, "names of an output"),
        (lambda x: x, {"state": ("x", "x")}, TypeError, "numbers of outputs"),
    ],
)
def test_formulas_that_are_none(formula, options, error, words):
    with pytest.raises(error, match=words):
        ops.elementwise("not_one", formula, **options)
    assert "not_one" not in {kind.name for kind in ops.op_types()}


def test_operands_that_do_not_fit(new_op):
    new_op("moved", lambda x, by, *, times: x + by * times, scalars=("by",))
    builder = Builder("moved")
    x = builder.tensor("x", (2, 3))
    by = builder.tensor("by", ())
    with pytest.raises(GraphError, match="moved needs the attribute 'times'"):
        builder.apply("moved", (x, by))
    with pytest.raises(GraphError, match="moved has no attribute time"):
        builder.apply("moved", (x, by), {"times": 1, "time": 2})
    whole = builder.tensor("whole", (2, 3), "int32")
    with pytest.raises(GraphError, match="add computes floats, not int32"):
        builder.apply("add", (whole, whole))
    with pytest.raises(GraphError, match="by is one number"):
        builder.apply("moved", (x, x), {"times": 1})
    with pytest.raises(GraphError, match="moved takes 2 inputs"):
        builder.apply("moved", (x,), {"times": 1})
    with pytest.raises(GraphError, match="differ"):
        builder.apply("add", (x, by))
    half = builder.tensor("half", (2, 3), "float16")
    with pytest.raises(GraphError, match="dtypes differ"):
        builder.apply("add", (x, half))
    (both,) = builder.apply("add", (half, half))
    assert builder.dtype(both) == "float16"


def test_text_that_is_no_expression():
    x = OperandSpec((4,), "float32")

    def make(text):
        return Kernel("own", {"expression": text}, [x], [x], None)

    make("operand 0; output 0")
    with pytest.raises(KernelError, match="'own' has outputs"):
        Kernel("own", {"expression": ""}, [x], [], None)
    for text in (
        "",
        "output",
        "operand 0",
        "operand 0; output 1",
        "operand 1; output 0",
        "operand 0; add 0; output 1",
        "operand 0; add 0 1; output 1",
        "operand 0; less 0 0; output 1",
        "operand 0; less 0 0; add 0 1; output 2",
        "operand 0; select 0 0 0; output 1",
        "operand 0; rounded 0; output 1",
        "operand 0; leap 0; output 1",
        "operand 0 0; output 0",
        "operand 0; output 0; operand 0",
        "operand 0; output 0 0",
        "scalar 0; output 0",
        "attribute size; output 0",
        "constant x; output 0",
        "operand 0; " * 300 + "output 0",
    ):
        with pytest.raises(KernelError, match="'own'"):
            make(text)


def test_gradients_flow_through_functions_of_losses():
    """Two losses added, one of them scaled: each gets its own cotangent."""
    builder = Builder("two losses")
    a = builder.tensor("a", (4, 3), role="parameter")
    b = builder.tensor("b", (4, 3), role="parameter")
    labels = builder.tensor("labels", (4,), "int32", role="input")
    by = builder.tensor("by", (), role="input")
    first, _ = builder.apply("softmax_cross_entropy", (a, labels))
    second, _ = builder.apply("softmax_cross_entropy", (b, labels))
    (scaled,) = builder.apply("scale", (second, by))
    (square,) = builder.apply("multiply", (scaled, first))
    (total,) = builder.apply("add", (first, square), name="loss")
    found = gradients(builder, total, [a, b, by])
    graph = builder.build([total, *found.values()])

    random = np.random.default_rng(0)
    values = {
        "a": random.normal(size=(4, 3)),
        "b": random.normal(size=(4, 3)),
        "labels": np.array([0, 2, 1, 1], np.int32),
        "by": np.float64(0.7),
    }
    made = interpret(graph, values)
    for tensor, gradient in found.items():
        name = graph.tensors[tensor].name
        direction = random.normal(size=np.shape(values[name]))
        up, down = (
            float(
                interpret(graph, {**values, name: values[name] + h * direction})["loss"]
            )
            for h in (1e-6, -1e-6)
        )
        got = float((made[graph.tensors[gradient].name] * direction).sum())
        assert got == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-9)


def test_a_loss_alone_costs_no_kernel_for_its_own_gradient():
    builder = Builder("one loss")
    a = builder.tensor("a", (4, 3), role="parameter")
    labels = builder.tensor("labels", (4,), "int32", role="input")
    loss, _ = builder.apply("softmax_cross_entropy", (a, labels))
    gradients(builder, loss, [a])
    assert [op.type for op in builder.ops] == [
        "softmax_cross_entropy",
        "softmax_cross_entropy_gradient",
    ]


def test_a_sum_of_losses_passes_the_number_one_on():
    builder = Builder("sum")
    a = builder.tensor("a", (4, 3), role="parameter")
    b = builder.tensor("b", (4, 3), role="parameter")
    labels = builder.tensor("labels", (4,), "int32", role="input")
    losses = [builder.apply("softmax_cross_entropy", (x, labels))[0] for x in (a, b)]
    (total,) = builder.apply("add", losses)
    gradients(builder, total, [a, b])
    assert [op.type for op in builder.ops[3:]] == ["softmax_cross_entropy_gradient"] * 2


def test_a_users_op_without_a_kernel_runs_in_numpy_between_native_ones():
    """A whole model trains with it, and is bit-identical however memory is planned."""

    def meaning(attributes, inputs, outputs):
        outputs[0][...] = inputs[0][..., ::-1]

    def infer(inputs, attributes):
        return [ops.Spec(inputs[0].shape, inputs[0].dtype)]

    def gradient(adjoint):
        return adjoint.emit("mirrored", (adjoint.dy,))

    class Mirror(mc.nn.Layer):
        def trace(self, scope, inputs):
            return scope.apply("mirrored", inputs)[0]

    ops.register(ops.OpType("mirrored", 1, infer, meaning, gradient=gradient))
    try:
        x = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
        weights = []
        for policy in (mc.plan.keep_all(), mc.plan.sqrt_checkpoint()):
            mc.nn.set_random_seed(0)
            inputs = mc.nn.Input((6,))
            y = inputs
            for _ in range(3):
                y = Mirror()(mc.nn.Dense(6, activation="sigmoid")(y))
            model = mc.nn.Model(inputs, mc.nn.Dense(2)(y))
            loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(mc.nn.SGD(0.1), loss, memory=policy)
            model.fit(x, np.arange(32) % 2, batch_size=16, epochs=2, verbose=0, seed=0)
            weights.append(model.get_weights())
            model.close()
        for one, other in zip(*weights, strict=True):
            assert one.tobytes() == other.tobytes()
    finally:
        ops.unregister("mirrored")


def test_a_weight_on_which_the_loss_does_not_depend_is_refused(new_op):
    new_op("sign_of", lambda x: ops.select(x < 0, -1, 1))
    x = mc.nn.Input((4,))
    model = mc.nn.Model(x, mc.nn.Dense(2)(mc.nn.Dense(3, "sign_of", name="stuck")(x)))
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mc.nn.SGD(0.1), loss)
    with pytest.raises(
        ValueError, match="does not depend on the weight 'stuck/kernel'"
    ):
        model.train_on_batch(np.ones((2, 4), np.float32), np.array([0, 1]))


def test_the_cores_table_of_nodes_is_written_from_that_of_python():
    native = Path(__file__).parents[2] / "_native"
    generate = runpy.run_path(str(native / "generate.py"))
    written = (native / "src" / "kernels" / "expression_nodes.inc").read_text()
    assert written == generate["nodes"](), "build again, or run _native/generate.py"
