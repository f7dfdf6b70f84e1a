"""Cases for every op type without an expression, of which many have several kernels."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
from cuda_compiler import cuda_source
from kernel_cases import Case

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.errors import GraphError
from memcfg.ops.chain import Link, join_elementwise

CPU_ONLY = {  # made where a device has a kernel
    *("dense_update", "conv2d_update"),
    *("dense_cross_entropy", "dense_cross_entropy_inference"),
    *("dense_int4", "dense_int8", "conv2d_int8", "coded_dense"),
    *("dense_of_float32", "dense_bias_of_float32", "dense_gradient_input_of_float32"),
    *(
        kind.name
        for kind in ops.op_types()
        if kind.composite is not None and kind.composite.for_inference
    ),
}
EXACT = {
    *(
        "order",
        "take_along",
        "argmax",
        "hits",
        "correct_count",
        "gather",
        "one_hot",
        "cast",
        "constant",
    ),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
    *("greatest_common_divisor", "least_common_multiple", "next_after"),
    *("integer_add", "integer_subtract", "integer_multiply", "integer_maximum"),
    *("integer_minimum", "integer_floor_divide", "integer_remainder"),
    *("integer_truncated_remainder", "integer_power_of", "integer_less"),
    *("integer_less_equal", "integer_equal", "integer_not_equal", "integer_assign"),
    *("triangle", "frames", "dequantize"),
    *("concatenate", "split", "transpose", "slice", "pad", "reverse", "broadcast_to"),
    "part",
    *("fill", "flatten", "reshape", "reduce_max", "max_pool2d", "max_pool2d_inference"),
    "max_pool2d_at",
}


def case(op_type, inputs, attributes=None):
    """A case whose outputs are as the op type has them."""
    attributes = attributes or {}
    specs = [ops.Spec(x.shape, x.dtype.name) for x in inputs]
    made = ops.op_type(op_type).infer(specs, attributes)
    return Case(
        op_type, inputs, [(each.shape, each.dtype) for each in made], attributes
    )


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def outputs_of(made):
    return [
        np.asarray(each, np.float32) if each.dtype == np.float64 else each
        for each in made.reference()
    ]


def window(strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    return {
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


def convolution_cases():
    same = ((1, 1), (1, 1))
    for x, kernel, a in (
        ((2, 7, 8, 3), (3, 3, 3, 9), window(padding=same)),
        ((2, 9, 9, 8), (3, 3, 4, 16), window((2, 2), same, groups=2)),
        ((1, 9, 10, 5), (2, 3, 5, 2), window((1, 2), ((2, 0), (0, 1)), (2, 3))),
        ((3, 8, 8, 6), (3, 3, 1, 6), window(padding=same, groups=6)),
        ((4, 17, 17, 4), (3, 3, 4, 16), window(padding=same)),
    ):
        y = case("conv2d", [normal(*x), normal(*kernel, seed=1)], a)
        dy = normal(*y.outputs[0][0], seed=2)
        yield y
        more = {**a, "kernel_shape": kernel, "input_shape": x}
        yield case("conv2d_gradient_kernel", [y.inputs[0], dy], more)
        yield case("conv2d_gradient_input", [y.inputs[1], dy], more)


def volume_cases():
    none, same = ((0, 0),) * 3, ((1, 1),) * 3
    for x, kernel, a in (
        ((2, 5, 7, 8, 3), (3, 3, 3, 3, 9), ((1, 1, 1), same, (1, 1, 1), 1)),
        ((2, 6, 9, 9, 8), (2, 3, 3, 4, 16), ((2, 2, 1), same, (1, 1, 1), 2)),
        (
            (1, 5, 9, 10, 5),
            (2, 2, 3, 5, 2),
            ((2, 1, 2), ((1, 0), (2, 0), (0, 1)), (2, 2, 3), 1),
        ),
        ((3, 4, 5, 6, 6), (3, 3, 2, 1, 6), ((1, 1, 1), none, (1, 1, 1), 6)),
        ((2, 6, 7, 5, 4), (1, 1, 1, 4, 8), ((2, 3, 1), none, (1, 1, 1), 1)),
        ((1, 7, 6, 9, 1), (7, 6, 9, 1, 3), ((1, 1, 1), none, (1, 1, 1), 1)),
    ):
        a = window(*a)
        y = case("conv3d", [normal(*x), normal(*kernel, seed=1)], a)
        dy = normal(*y.outputs[0][0], seed=2)
        yield y
        more = {**a, "kernel_shape": kernel, "input_shape": x}
        yield case("conv3d_gradient_kernel", [y.inputs[0], dy], more)
        yield case("conv3d_gradient_input", [y.inputs[1], dy], more)


def product_cases():
    for lead, k, n in (((5,), 7, 3), ((2, 35), 30, 66), ((1,), 400, 20), ((70,), 9, 1)):
        x, kernel, dy = normal(*lead, k), normal(k, n, seed=1), normal(*lead, n, seed=2)
        yield case("dense", [x, kernel])
        yield case("dense_gradient_kernel", [x, dy])
        yield case("dense_gradient_input", [kernel, dy])
    yield case("dense_gradient_kernel", [normal(3000, 12), normal(3000, 9, seed=1)])
    yield case("dense", [normal(2, 5000), normal(5000, 3, seed=1)])
    for ta in (False, True):
        for tb in (False, True):
            for (m, k, n), lead in (
                ((9, 20, 70), (2, 3)),
                ((3, 5, 2), (4,)),
                ((8, 8, 8), ()),
            ):
                a = normal(*lead, *((k, m) if ta else (m, k)))
                b = normal(*lead, *((n, k) if tb else (k, n)), seed=1)
                flags = {"transpose_a": ta, "transpose_b": tb}
                yield case("matmul", [a, b], flags)
    yield case("matmul", [normal(3, 4, 5), normal(5, 6)])
    yield case("matmul", [normal(3, 4, 5), normal(6, 5)], {"transpose_b": True})


def reduction_cases():
    for shape, axes in (
        ((), ()),
        ((7,), (0,)),
        ((40_001,), (0,)),
        ((9, 70, 5), (1,)),
        ((9, 70, 5), (-1, 0)),
        ((3, 41, 5, 7), (1, 3)),
        ((3, 4, 5, 6), (0, 2)),
        ((2, 3, 2, 3, 2), (1, 3)),
        ((2, 3, 4), (0, 1, 2)),
        ((2, 3, 4), ()),
        ((5000, 3), (0,)),
        ((2, 9000, 7), (1,)),
        ((9, 70, 100), (0, 2)),
        ((1, 6, 1), (1,)),
    ):
        x = np.round(normal(*shape) * 2) / 4
        x = np.asarray(x, np.float32)
        a = {"axes": axes, "keepdims": len(shape) == 3}
        for kind in ("reduce_sum", "reduce_mean", "reduce_max"):
            made = case(kind, [x], a)
            yield made
        (y,) = outputs_of(made)
        dy = normal(*y.shape, seed=1)
        yield case("reduce_max_gradient", [x, y, dy], {"axes": axes})
    nan = np.zeros((3, 200), np.float32)
    nan[1, 150] = np.nan
    yield case("reduce_max", [nan], {"axes": (1,)})
    yield case("reduce_max", [nan], {"axes": (0,)})


def column_cases():
    for shape in (
        (7, 3),
        (64, 10),
        (9, 64),
        (3, 65),
        (2, 300),
        (3000, 6),
        (4200, 8),
        (2, 3, 4, 5),
    ):
        c, a = shape[-1:], {"epsilon": 1e-3}
        x, gamma, beta = normal(*shape) + 3, normal(*c, seed=1), normal(*c, seed=2)
        dy = normal(*shape, seed=3)
        yield case("bias", [x, beta])
        yield case("bias_gradient", [x])
        layer, batch = case("layer_normalization", [x, gamma, beta], a), moments(x)
        yield layer
        yield batch
        for kind, found in (
            ("layer_normalization", outputs_of(layer)[1:]),
            ("batch_normalization", outputs_of(batch)),
        ):
            yield case(f"{kind}_gradient", [x, dy, gamma, *found], a)
            if kind.startswith("batch"):
                for each in (kind, f"{kind}_inference"):
                    yield case(each, [x, gamma, beta, *found], a)
        yield from fused_cases(x, dy, gamma, beta)
        yield from activated_cases(x, dy, gamma, beta)
    yield moments(1000 + normal(500, 3))
    for first in (1e6, np.nan):
        far = 1000 + normal(4200, 8)
        far[0, ::2] = far[7, 1] = first
        yield case("batch_moments", [far])


def moments(x):
    return case("batch_moments", [x])


def fused_cases(x, dy, gamma, beta):
    """Composites; what a ReLU gave is above 0, below, at 0 and at 6."""
    y = np.float32([6, 0, 2.5, -0.0])[np.arange(x.size) % 4].reshape(x.shape)
    a, other = {"epsilon": 1e-3}, 3 * dy
    mean, variance = outputs_of(moments(x))
    yield case("bias_relu", [x, beta - 3])
    yield case("bias_relu_gradient", [y, dy])
    for end, more in (
        ("_relu", []),
        ("_relu6", []),
        ("_add", [other]),
        ("_add_relu", [other]),
    ):
        inputs = [x, gamma, beta, mean, variance, *more]
        yield case(f"batch_normalization{end}", inputs, a)
        inputs = [x, 9 * gamma, beta, mean, variance, *more]
        yield case(f"batch_normalization_inference{end}", inputs, a)
    inputs = [x, dy, y, gamma, mean, variance]
    yield case("batch_normalization_add_relu_gradient", inputs, a)


def activated_cases(x, dy, gamma, beta):
    """Gradients of what an activation followed; arrays are also parts of wider ones."""
    a = {"epsilon": 1e-3}
    mean, variance = outputs_of(moments(x))
    y = np.float32([6, 0, 2.5, -0.0])[np.arange(x.size) % 4].reshape(x.shape)

    def part(array, before, after):
        pads = [(0, 0)] * (array.ndim - 1) + [(before, after)]
        return np.pad(array, pads, constant_values=7)

    for before, after in ((0, 3), (2, 0), (1, 70)):
        given = [part(y, before, after), dy]
        yield case("bias_relu_gradient_at", given, {"first": before})
        yield case("relu_gradient_at", given, {"first": before})
    for end in ("relu", "relu6"):
        rest = [dy, 2 * gamma, beta, mean, variance]
        kind = f"batch_normalization_{end}_gradient"
        yield case(kind, [x, *rest], a)
        yield case(kind, [x, *rest], {**a, "rounds": True})
        for before, after in ((0, 3), (2, 70)):
            yield case(kind, [part(x, before, after), *rest], {**a, "first": before})


def biased_cases():
    """Contractions that have a bias; some of more than one tile or piece."""
    for made in (*convolution_cases(), *product_cases()):
        if made.op_type in ("conv2d", "dense"):
            inputs = [*made.inputs, normal(made.inputs[1].shape[-1], seed=2)]
            yield case(f"{made.op_type}_bias", inputs, made.attributes)


def following_cases(made):
    """A product of a case with what follows it in inference."""
    name, (x, kernel) = made.op_type, made.inputs
    units = kernel.shape[-1]
    bias, gamma, beta, mean = (normal(units, seed=2 + i) for i in range(4))
    variance = 0.5 + normal(units, seed=6) ** 2
    other = normal(*made.outputs[0][0], seed=7)
    yield case(f"{name}_bias_relu", [x, kernel, bias], made.attributes)
    for end in ("_add", "_add_relu"):
        yield case(f"{name}_bias{end}", [x, kernel, bias, other], made.attributes)
    if name != "conv2d":
        return
    attributes = {**made.attributes, "epsilon": 1e-3}
    for first in ([], [bias]):
        inputs = [x, kernel, *first, gamma, beta, mean, variance]
        biased = "_bias" if first else ""
        for end in ("", "_relu", "_add", "_add_relu"):
            kind = f"conv2d{biased}_batch_normalization_inference{end}"
            added = [other] if "_add" in end else []
            yield case(kind, [*inputs, *added], attributes)


def chain_cases():
    for shape in ((7, 3), (2, 3, 4, 5), (3000,)):
        x, y, by = normal(*shape), normal(*shape, seed=1), normal(seed=2).reshape(())
        links = [Link("scale", {}, (0, 2)), Link("add", {}, (-1, 1))]
        links.append(Link("leaky_relu", {"negative_slope": 0.1}, (-2,)))
        text = join_elementwise(links, [False, False, True])
        yield case("chain", [x, y, by], {"expression": text})


def square_cases():
    yield case("norm", [normal(300, 7), normal(50001, seed=1), normal(seed=2)])
    yield case("norm", [np.full(9, 3e38, np.float32)])
    yield case("norm", [np.float32([1, np.inf])])
    yield case("norm", [np.float32([1, np.nan])])
    for shape in ((17, 3), (2, 3, 30, 40), (1500, 4)):
        made = case("factored_means", [normal(*shape)], {"epsilon": 1e-3})
        yield made
        yield case("over_factored_root", [normal(*shape), *outputs_of(made)])


def softmax_cases():
    for shape, axis in (((4, 10), -1), ((3, 7, 5), 1), ((2, 600), 1), ((130, 3, 9), 1)):
        for kind in ("softmax", "log_softmax"):
            made = case(kind, [normal(*shape) * 9], {"axis": axis})
            yield made
            dy = normal(*shape, seed=1)
            yield case(f"{kind}_gradient", [outputs_of(made)[0], dy], {"axis": axis})
    for shape in ((2, 3, 5, 5), (4, 7), (2, 9, 4)):
        yield case("softmax", [normal(*shape)], {"causal": True})
    wide = normal(2, 3, 700) * 9
    yield case("softmax", [np.repeat(wide, 2, axis=1)], {"axis": 0})


def loss_cases():
    random = np.random.default_rng(5)
    for rows, classes in ((1, 1), (70, 10), (9, 300), (3000, 2)):
        x = (3 * random.normal(size=(rows, classes))).astype("f4")
        good = random.integers(0, classes, rows).astype(np.int32)
        odd = random.integers(-1, classes + 1, rows).astype(np.int32)
        for labels in (good, odd):
            made = case("softmax_cross_entropy", [x, labels])
            yield made
            yield case("softmax_cross_entropy_inference", [x, labels])
            p = outputs_of(made)[1]
            yield case("softmax_cross_entropy_gradient", [p, labels])
            for a in ({}, {"ignored": 1}):
                yield case("cross_entropy_rows", [x, labels], a)
                dy = random.normal(size=rows).astype("f4")
                yield case("cross_entropy_rows_gradient", [p, labels, dy], a)
        ties = random.integers(0, 4, (rows, classes)).astype("f4")
        ties[random.random(ties.shape) < 0.1] = np.nan
        yield case("argmax", [ties])
        yield case("correct_count", [ties, odd])
        for k in (0, 1, 3):
            yield case("hits", [ties, odd], {"k": k})
    for weighted in (-1, 0, 1, 2):
        shape = (9, 30)
        x = random.choice([0.25, 0.5, -1, 2, np.nan], shape).astype("f4")
        inputs = [random.integers(0, 2, shape).astype("f4"), x]
        if weighted >= 0:
            inputs.append(random.uniform(size=shape[:weighted]).astype("f4"))
        for limits in ([], [0.25, 0.5, 1]):
            bits = tuple(int(b) for b in np.float32(limits).view(np.uint32))
            yield case("threshold_counts", inputs, {"threshold_bits": bits})


def attention_cases():
    name = "scaled_dot_product_attention"
    for (batch, queries, keys), heads, depth, width, a, masks in (
        ((1, 1, 1), (1,), 1, 1, {}, ()),
        ((2, 5, 3), (3,), 4, 6, {}, ((1, 3), (5, 3))),
        ((1, 70, 130), (2,), 9, 33, {}, ((70, 130), (70, 1))),
        ((2, 67, 67), (), 17, 5, {"causal": True}, ((1, 67),)),
        ((1, 3, 130), (1,), 2, 70, {"causal": True}, ()),
        ((1, 130, 66), (1,), 70, 3, {"causal": True}, ()),
        ((2, 67, 131), (2,), 4, 7, {"rate": 0.4, "key": 2**40 + 3}, ((67, 131),)),
        ((2, 66, 66), (), 4, 5, {"rate": 0.1, "key": 9, "causal": True}, ()),
        ((2, 5, 67), (3,), 4, 5, {"rate": 0.3, "key": 9, "first": 6}, ()),
        ((1, 3, 68), (1,), 4, 5, {"rate": 0.3, "key": 9, "first": 3}, ()),
    ):
        a = {"scale": 0.3, **a}
        step = [np.array(2**33 + 5)] if "rate" in a else []
        if "first" in a:  # samples of a larger batch
            step = [np.array([2**33 + 5, a.pop("first"), batch])]
        q, k, v = (
            normal(batch, steps, *heads, size, seed=seed)
            for seed, (steps, size) in enumerate(
                ((queries, depth), (keys, depth), (keys, width))
            )
        )
        masks = [(normal(batch, *each, seed=5) > -0.5).astype("f4") for each in masks]
        for each in masks:
            each[..., 0] = 1  # of a row that is masked whole float32 loses the scores
        forward = case(name, [q, k, v, *masks, *step], a)
        yield forward
        saved = outputs_of(forward)
        dy = normal(*saved[0].shape, seed=7)
        yield case(f"{name}_gradient", [q, k, v, *saved, dy, *masks, *step], a)


def movement_cases():
    x = normal(9, 7, 5)
    for axes in ((2, 1, 0), (0, 2, 1), (0, 1, 2), (1, 2, 0)):
        yield case("transpose", [x], {"axes": axes})
    yield case("transpose", [normal(3, 4, 5, 6)], {"axes": (3, 1, 0, 2)})
    yield case("transpose", [normal(37, 3, 41)], {"axes": (2, 1, 0)})
    whole = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    yield case("transpose", [whole], {"axes": (1, 0, 2)})
    taken = {"begin": (1, 1, 0), "end": (8, 7, 5), "strides": (2, 1, 3)}
    yield case("slice", [x], taken)
    yield case("slice", [x], {"begin": (0, 1, 2), "end": (9, 7, 4)})
    put = {"before": (1, 2, 0), "after": (3, 0, 1), "value": 1.5, "strides": (2, 1, 3)}
    yield case("pad", [normal(3, 4, 5)], put)
    yield case("pad", [whole], {**put, "value": -7})
    same = {"before": (0, 1, 0, 0), "after": (0, 2, 0, 0), "value": 0.0}
    yield case("pad", [normal(2, 3, 4, 5)], same)
    for axes in ((0, -1), (1,), (0, 1, 2)):
        yield case("reverse", [x], {"axes": axes})
    yield case("broadcast_to", [normal(7, 1)], {"shape": (9, 7, 5)})
    yield case("broadcast_to", [np.array(2.5, np.float32)], {"shape": (3, 4)})
    for rank in range(4):  # of 35 elements the last part has 8 and a zero
        yield case("part", [normal(7, 5)], {"rank": rank, "ranks": 4})
        yield case("part", [normal(5)], {"rank": rank, "ranks": 4})
    yield case("fill", [], {"shape": (3, 5), "value": 2.5, "dtype": "float32"})
    yield case("fill", [], {"shape": (), "value": -3, "dtype": "int32"})
    numbers = np.array([[1.5, -0.0, np.inf], [1e-40, 3e38, np.nan]], np.float32)
    data = numbers.astype(">f4").tobytes().hex()
    yield case("constant", [], {"shape": (2, 3), "data": data})
    for dtype in ("float32", "int32", "uint8", "int64"):
        numbers = np.arange(105).reshape(3, 5, 7).astype(dtype)
        yield case("flatten", [numbers])
        yield case("reshape", [numbers], {"shape": (7, 15)})
    for axis in (0, 1, -1):
        parts = [np.moveaxis(normal(n, 3, 4, seed=n), 0, axis) for n in (2, 1, 5)]
        parts = [np.ascontiguousarray(part) for part in parts]
        yield case("concatenate", parts, {"axis": axis})
        together = np.concatenate(parts, axis)
        yield case("split", [together], {"axis": axis, "lengths": (2, 1, 5)})


def ordering_cases():
    ties = np.round(normal(4, 37) * 2) / 2
    ties[1, ::5], ties[2, 3], ties[3, :4] = np.nan, np.inf, [-0.0, 0.0, -np.inf, 0]
    indices = np.array([[0, 4, -1, 5], [-5, 2, 2, -6], [1, 1, 1, 1]], np.int32)
    for x in (ties, normal(5), normal(2, 3, 1)):
        for descending in (0, 1):
            yield case("order", [x.astype("f4")], {"descending": descending})
    yield case("take_along", [normal(3, 5), indices])
    yield case("put_along", [indices, normal(3, 4)], {"length": 5})
    many = np.random.default_rng(0).integers(-9, 9, (2, 700)).astype(np.int32)
    yield case("take_along", [normal(2, 8), many])
    yield case("put_along", [many, normal(2, 700)], {"length": 8})


def alignment_cases():
    """No labels, repeated ones, too few steps, and what is out of range."""
    random = np.random.default_rng(3)
    for steps, classes, width, blank in ((7, 5, 4, 0), (1, 2, 1, 1), (70, 20, 9, 3)):
        x = 3 * normal(8, steps, classes)
        labels = random.integers(0, classes, (8, width)).astype(np.int32)
        labels[labels == blank] = (blank + 1) % classes
        labels[2], labels[6, 0] = labels[2, 0], classes
        counts = random.integers(0, width + 1, 8).astype(np.int32)
        counts[:3], counts[6] = (0, 1, width), 1
        lengths = np.full(8, steps, np.int32)
        lengths[3:6] = random.integers(0, steps + 1, 3)
        lengths[7] = steps + 1
        inputs, a = [x, labels, counts, lengths], {"blank": blank}
        yield case("ctc_loss", inputs, a)
        yield case("ctc_loss_gradient", [*inputs, normal(8)], a)
        if classes < 20:
            for beams, top in ((1, 1), (3, 2), (50, 4)):
                more = {**a, "beam_width": beams, "top_paths": top}
                yield case("ctc_beam_search", [x, lengths], more)


def integer_cases():
    ends = [0, 1, -1, 31, 32, -5, 12, 18, 2**31 - 1, -(2**31), -(2**31) + 1]
    a, b = (np.array(x, np.int32) for x in zip(*product(ends, ends), strict=True))
    for name in (
        *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
        *("greatest_common_divisor", "least_common_multiple"),
        *("integer_add", "integer_subtract", "integer_multiply", "integer_maximum"),
        *("integer_minimum", "integer_floor_divide", "integer_remainder"),
        *("integer_truncated_remainder", "integer_power_of", "integer_less"),
        *("integer_less_equal", "integer_equal", "integer_not_equal", "integer_assign"),
    ):
        yield case(name, [a, b])
        yield case(name, [a.reshape(11, 11)[:, :7], b.reshape(11, 11)[:, 4:]])
    odd = [0.0, -0.0, 1.0, -1.0, 1e-45, 3.4028235e38, np.nan, np.inf, -np.inf, 1e-38]
    a, b = (np.array(x, np.float32) for x in zip(*product(odd, odd), strict=True))
    yield case("next_after", [a, b])


def signal_cases():
    for shape in ((3, 1), (2, 3, 2), (5, 8), (2, 7), (70, 12), (1, 1024), (2, 250)):
        parts = [normal(*shape), normal(*shape, seed=1)]
        for inverse in (0, 1):
            yield case("fourier", parts, {"inverse": inverse})
    for shape, length, step, dilation in (
        ((4,), 4, 1, 1),
        ((3, 20), 5, 3, 1),
        ((2, 3, 41), 6, 4, 3),
        ((5, 700), 16, 32, 1),
    ):
        a = {"length": length, "step": step, "dilation": dilation}
        made = case("frames", [normal(*shape)], a)
        yield made
        a = {"size": shape[-1], "step": step, "dilation": dilation}
        yield case("overlap_add", [normal(*made.outputs[0][0])], a)


def matrix_cases():
    """Regular matrices, singular ones and such of no numbers."""
    for shape in ((2, 3, 5, 5), (1, 1), (3, 2, 2), (4, 20, 20)):
        x = normal(*shape)
        lead, n = shape[:-2], shape[-1]
        positive = x @ np.swapaxes(x, -1, -2) + np.eye(n, dtype=np.float32)
        odd = positive.reshape(-1, n, n).copy()
        odd[0], odd[-1, 0, 0] = -odd[0], np.nan
        for each in (positive, odd):
            yield case("cholesky", [each])
            for kind in ("matrix_inverse", "determinant", "slogdet", "eigh"):
                yield case(kind, [each])
        for kind in ("matrix_inverse", "determinant", "slogdet", "lu_factor"):
            yield case(kind, [x])
        yield case("cofactors", [x, normal(*lead, seed=1)])
        yield from column_of_matrix_cases(positive, normal(*lead, n, 3, seed=1))
    rank = np.float32([[[1, 2], [2, 4]], [[0, 0], [0, 0]], [[0, 1], [0, 3]]])
    for kind in ("matrix_inverse", "determinant", "slogdet", "lu_factor"):
        yield case(kind, [rank])
    yield case("cofactors", [rank, np.float32([1, -2, 3])])
    yield case(
        "cofactors", [np.float32([[1, 2, 3], [2, 4, 6], [1, 0, 1]]), np.float32(2)]
    )
    yield case("solve", [rank, np.ones((3, 2, 1), np.float32)])
    yield from factored_cases()


def column_of_matrix_cases(a, b):
    for transposed in (0, 1):
        yield case("solve", [a, b], {"transposed": transposed})
        for lower, unit in product((0, 1), repeat=2):
            given = {"lower": lower, "transposed": transposed, "unit": unit}
            yield case("solve_triangular", [a / 9 if unit else a, b], given)


def factored_cases():
    for shape in ((5, 3), (2, 3, 5), (2, 2, 4, 4), (1, 1), (7, 1), (30, 12)):
        x = normal(*shape)
        for offset, lower in product((-1, 0, 2), (0, 1)):
            yield case("triangle", [x], {"lower": lower, "offset": offset})
        for complete in (0, 1):
            yield case("qr", [x], {"complete": complete})
        yield case("svd", [x])
        yield case("pseudo_inverse", [x], {"rcond": 1e-6})
    low = normal(6, 2) @ normal(2, 4, seed=1)
    yield case("pseudo_inverse", [low], {"rcond": 1e-5})
    yield case("pseudo_inverse", [low.T.copy()], {"rcond": 1e-5})
    yield case("pseudo_inverse", [0 * low], {"rcond": 1e-5})
    low[0, 0] = np.inf
    for kind, a in (("svd", {}), ("qr", {}), ("pseudo_inverse", {"rcond": 0.1})):
        yield case(kind, [low], a)


def table_cases():
    indices = np.array([[0, 6, 2], [2, -1, 7]], np.int32)
    rng = np.random.default_rng(3)
    for dtype, held, group in (("int8", 18, 18), ("int8", 18, 4), ("uint8", 9, 5)):
        codes = rng.integers(0, 256, (held, 7)).astype(np.uint8).view(dtype)
        scales = normal(-(-18 // group), 7)
        yield case("dequantize", [codes, scales], {"shape": (2, 9, 7), "group": group})
    yield case("gather", [normal(7, 5), indices])
    yield case("gather", [normal(7), indices])
    yield case("scatter_add", [indices, normal(2, 3, 5)], {"rows": 7})
    many = np.random.default_rng(0).integers(-1, 6, 700).astype(np.int32)
    yield case("scatter_add", [many, normal(700, 300)], {"rows": 5})
    yield case("one_hot", [indices], {"depth": 7})
    yield from ordering_cases()
    odd = [0.0, -0.0, 1.9, -1.9, 255.5, 3e9, -3e9, 1e19, np.nan, np.inf, -np.inf]
    dtypes = ("float32", "float64", "int32", "int64", "int8", "uint8", "bool")
    for source in dtypes:
        for target in dtypes:
            x = np.array(odd if "float" in source else [0, 1, 77, 200]).astype(source)
            yield case("cast", [x], {"dtype": target})
    for shape, axis in (((3, 5, 7), 1), ((4,), 0), ((2, 1, 3), 1)):
        for factor in (1, 2, 3):
            a = {"axis": axis, "factor": factor}
            made = case("interpolate", [normal(*shape)], a)
            yield made
            yield case("interpolate_gradient", [normal(*made.outputs[0][0])], a)


def random_cases():
    for count, rate, key, step in (
        (1, 0.0, 0, 0),
        (1001, 0.5, 2**63 - 1, 2**40 + 9),
        (2000, 0.999, 77, -1),
        (999, 0.5, 7, [2**40 + 9, 5, 3]),  # of a part of a batch
        (4096, 0.5, 7, [3, 1, 1024]),
    ):
        number = np.array(step, np.int64)
        yield case("dropout", [normal(count), number], {"rate": rate, "key": key})
        yield case("random_uniform", [number], {"shape": (count,), "key": key})


def pool_cases():
    random = np.random.default_rng(3)
    for shape, size, strides, padding in (
        ((2, 8, 7, 3), (2, 2), (2, 2), ((0, 0), (0, 0))),
        ((1, 9, 9, 5), (3, 2), (1, 3), ((1, 2), (0, 1))),
        ((2, 5, 6, 40), (3, 3), (2, 1), ((1, 1), (1, 1))),
    ):
        a = {"pool_size": size, "strides": strides, "padding": padding}
        x = random.integers(-3, 3, shape).astype("f4")
        x[0, 1, 1], x[0, 2, 2] = np.nan, -np.inf
        yield (most := case("max_pool2d", [x], a))
        yield case("max_pool2d_inference", [x], a)
        y, index = outputs_of(most)
        dy = normal(*y.shape)
        more = {**a, "input_shape": shape}
        yield case("max_pool2d_gradient", [index, dy], more)
        yield case("max_pool2d_at", [index, normal(*shape)], a)
        yield case("average_pool2d", [normal(*shape)], a)
        yield case("average_pool2d_gradient", [dy], more)
        yield case("global_average_pool2d", [normal(*shape)])
        dy = normal(shape[0], shape[3])
        yield case("global_average_pool2d_gradient", [dy], {"input_shape": shape})


def recurrent_cases():
    for kind, gates in (("lstm", 4), ("gru", 3), ("simple_rnn", 1)):
        states = 1 + (kind == "lstm")
        for batch, steps, units, masked, cells in (
            (1, 1, 1, False, False),
            (3, 4, 5, True, states > 1),
            (2, 3, 21, False, states > 1),
            (2, 2, 260, True, False),
        ):
            width = gates * units
            inputs = [normal(batch, steps, width), normal(units, width, seed=1) * 0.1]
            inputs += [normal(width, seed=2)] * (kind == "gru")
            first = [normal(batch, units, seed=3 + i) for i in range(states)]
            mask = [(normal(batch, steps, seed=9) > -0.3).astype("f4")] * masked
            made = case(kind, [*inputs, *first, *mask], {"masked": masked})
            yield made
            new = outputs_of(made)
            dys = [normal(batch, steps, units, seed=7 + i) for i in range(1 + cells)]
            back = [inputs[1], *new[states:], *new[:states], *first, *dys, *mask]
            a = {"masked": masked, "cells": cells}
            yield case(f"{kind}_gradient", back, a)


@cache
def all_cases():
    """Every op type without an expression, several times."""
    found = {}
    with np.errstate(all="ignore"):
        for family in (
            *(
                convolution_cases,
                volume_cases,
                product_cases,
                biased_cases,
                reduction_cases,
            ),
            *(square_cases, softmax_cases, loss_cases, movement_cases, table_cases),
            *(random_cases, pool_cases, recurrent_cases, chain_cases),
            *(column_cases, attention_cases, alignment_cases),
            *(integer_cases, signal_cases, matrix_cases),
        ):
            for each in family():
                found.setdefault(each.op_type, []).append(each)
    return found


def source_of(each):
    inputs = [OperandSpec(x.shape, x.dtype.name) for x in each.inputs]
    outputs = [OperandSpec(*spec) for spec in each.outputs]
    return cuda_source(each.op_type, each.attributes, inputs, outputs)


@cache
def sources_of_all():
    """The CUDA of all cases, which is compiled at once."""
    return "".join(
        {source_of(c).text: None for row in all_cases().values() for c in row}
    )


_SHAPES = ("shape", "input_shape", "kernel_shape", "lengths", "end")  # attributes


def empty_cases():
    """The cases with no elements along some axis, as far as ops and NumPy have them."""
    found = {
        name: case(name, inputs, attributes)
        for name, inputs, attributes in (
            ("random_uniform", [np.array(0)], {"shape": (3, 0), "key": 1}),
            ("fill", [], {"shape": (0, 3), "value": 1, "dtype": "float32"}),
            ("constant", [], {"shape": (0,), "data": ""}),
        )
    }
    for cases in all_cases().values():
        for each in cases:
            for gone in sorted({n for x in each.inputs for n in x.shape}):
                made = _without(each, gone)
                if made is not None:
                    shapes = tuple(x.shape for x in made.inputs)
                    found[made.op_type, shapes, str(made.attributes)] = made
    return list(found.values())


def _without(each, gone):
    """Cut every axis of a length to none; None where that is no op."""
    inputs = [
        x[tuple(slice(0 if n == gone else n) for n in x.shape)] for x in each.inputs
    ]
    attributes = {
        name: tuple(0 if n == gone else n for n in value) if name in _SHAPES else value
        for name, value in each.attributes.items()
    }
    try:
        made = case(each.op_type, inputs, attributes)
        with np.errstate(all="ignore"):
            made.reference()
        ops.op_type(each.op_type).kernel_attributes(attributes)
    except (GraphError, ValueError, IndexError, ZeroDivisionError):
        return None  # a maximum of no values, a window over nothing
    return made
