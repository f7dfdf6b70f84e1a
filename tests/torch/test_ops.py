"""PyTorch's own samples of ops and modules have the same bits in memcfg's pool.

Its wheel has them for its own tests: `OpInfo` of each op, `ModuleInfo` of each module.
Forward and backward run outside of the pool and inside, and leave no byte there.
"""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo import core
from torch_bits import bits, bytes_left, inside, seed, tensors_in

import memcfg.torch as mt

pytestmark = pytest.mark.filterwarnings("ignore")  # of ops that are deprecated

# Samples look in the whole stack for a case of unittest, of which there is none, and in
# all modules for the source of each frame: 0.4 s a test once everything is imported.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

# Their results are what was in the memory before.
UNINITIALISED = {
    *("empty", "empty_like", "empty_permuted", "empty_strided"),
    *("new_empty", "new_empty_strided"),
}
# PyTorch has no samples for a CPU, or refuses its own.
NOT_RUN = {
    *("jiterator_unary", "jiterator_binary", "jiterator_2inputs_2outputs"),
    *("jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref"),
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
    "nn.functional.batch_norm.without_cudnn",
}
NO_GRADIENT = {"linalg.eig", "to_sparse"}  # of eigenvectors: not unique; sparse
DOUBLE = {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"}  # their samples are
SAMPLES = 2  # of an op, the first


def name_of(op) -> str:
    return ".".join(filter(None, (op.name, op.variant_test_name)))


OPS = [each for each in op_db if name_of(each) not in NOT_RUN | UNINITIALISED]


def results_of(op):
    """The bits of an op's results and gradients, of its first samples."""
    seed()
    dtype = torch.float32
    if dtype not in op.dtypes:
        dtype = min(op.dtypes, key=str)
    found = []
    differentiable = op.supports_autograd and dtype.is_floating_point
    differentiable &= name_of(op) not in NO_GRADIENT
    samples = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for number, sample in enumerate(islice(samples, SAMPLES)):
        torch.default_generator.manual_seed(number)  # and no GPU's
        made = op(sample.input, *sample.args, **sample.kwargs)
        results = tensors_in(made)
        found += map(bits, results) if results else [("", (), repr(made).encode())]
        operands = tensors_in((sample.input, sample.args, sample.kwargs))
        operands = [each for each in operands if each.requires_grad]
        results = [each for each in results if each.requires_grad]
        if operands and results:
            ones = [torch.ones_like(each) for each in results]
            slopes = torch.autograd.grad(results, operands, ones, allow_unused=True)
            found += [bits(each) for each in slopes if each is not None]
    return found


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_an_op_has_the_same_bits_in_the_pool(op):
    outside = results_of(op)
    assert outside
    before = mt.cpu_pool().stats().allocation_count
    assert inside(lambda: results_of(op)) == outside
    if any(shape and data for _, shape, data in outside):  # samples can be empty
        assert mt.cpu_pool().stats().allocation_count > before
    assert bytes_left() == 0


def steps_of(info, training):
    """The bits of a module's results, gradients and state after a backward pass."""
    found = []
    seed()
    dtype = torch.float64 if info.name in DOUBLE else torch.float32
    samples = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for number, sample in enumerate(islice(samples, SAMPLES)):
        seed(number)
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        given = sample.forward_input
        results = tensors_in(
            module() if given is None else module(*given.args, **given.kwargs)
        )
        found += map(bits, results)
        sums = [each.abs().sum() for each in results if each.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()
        found += [bits(p.grad) for p in module.parameters() if p.grad is not None]
        found += map(bits, module.state_dict().values())
    return found


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_a_module_has_the_same_bits_in_the_pool(info, training):
    outside = steps_of(info, training)
    assert inside(lambda: steps_of(info, training)) == outside
    assert bytes_left() == 0
