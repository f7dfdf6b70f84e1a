"""Models of `bench_conformance.py`: their bits, and their peaks within limits."""

from __future__ import annotations

import copy
import math
from importlib.util import find_spec

import pytest
import torch
from conformance import cases, loss_of
from torch.utils._pytree import tree_leaves
from torch_allocations import rounded

import memcfg.torch as mt

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, and of PyTorch
SHARE = 0.7  # of eager's peak, or else the floor
MODELS = (
    "own/resnet",
    "own/mixture",
    "timm/test_efficientnet",
    "transformers/llama",
    "diffusers/dit",
)
MORE_MODELS = (  # which reach nothing new, and take as long
    "own/vision_transformer",
    "timm/convnext_atto",
    "torchvision/squeezenet1_1",
    "transformers/bert_classes",
    "transformers/t5",
)


@pytest.fixture(
    params=[
        *MODELS,
        *(pytest.param(each, marks=pytest.mark.slow) for each in MORE_MODELS),
    ]
)
def case(request):
    """A model that was built once: what its library makes then outlives the model."""
    library = request.param.partition("/")[0]
    if library != "own" and find_spec(library) is None:
        pytest.skip(f"needs {library}: tox run -e parity")
    found = cases(library)[request.param]
    found.build()
    return found


def step(model, inputs):
    """One step without an update: the loss, the gradients and the buffers."""
    for each in model.parameters():
        each.grad = None
    torch.manual_seed(1)
    args, kwargs = inputs
    made = model(*args, **kwargs)  # which lives until the step ends
    loss = loss_of(made)
    loss.backward()
    return [loss.detach(), *(e.grad for e in model.parameters()), *model.buffers()]


def peak_bytes(model, inputs):
    """The state, the inputs, and what a step adds at most, as the pool counts."""
    for each in model.parameters():
        each.grad = None
    before = mt.get_memory_info()["current"]
    mt.reset_memory_stats()
    step(model, inputs)
    added = mt.get_memory_info()["peak"] - before
    leaves = (*model.parameters(), *model.buffers(), *tree_leaves(inputs))
    storages = {
        each.untyped_storage()._cdata: each.untyped_storage().nbytes()
        for each in leaves
        if isinstance(each, torch.Tensor)
    }
    return added + sum(map(rounded, storages.values()))


def test_a_model_trains_within_its_limit_to_eagers_bits(case, pool):
    eager = case.build().train()
    inputs = case.inputs()
    model = copy.deepcopy(eager)
    wanted = [None if e is None else e.clone() for e in step(eager, inputs)]
    step(eager, inputs)
    peak = peak_bytes(eager, inputs)
    args, kwargs = inputs
    told = mt.estimate(copy.deepcopy(model), args, example_kwargs=kwargs, loss=loss_of)
    assert told.eager_bytes == pytest.approx(peak, rel=0.01)
    limit = max(int(SHARE * peak), told.floor_bytes)
    mt.budget(model, limit, loss=loss_of)
    found = step(model, inputs)
    assert all(
        one is other if one is None or other is None else torch.equal(one, other)
        for one, other in zip(found, wanted, strict=True)
    )
    del found, wanted
    for _ in range(2):  # the second is measured, and the third planned again
        step(model, inputs)
    assert peak_bytes(model, inputs) <= limit


def test_hooks_that_a_model_installs_when_it_first_runs_break_no_graph():
    pytest.importorskip("transformers", reason="needs it: tox run -e parity")
    case = cases("transformers")["transformers/segformer"]
    model, inputs = case.build().train(), case.inputs()
    plain = copy.deepcopy(model)
    mt.budget(model, math.inf, loss=loss_of, times="nominal")
    # one thread sums the gradient of the last bias in another order
    torch.testing.assert_close(step(model, inputs), step(plain, inputs))
    assert mt.get_budget(model).memory_plan is not None
