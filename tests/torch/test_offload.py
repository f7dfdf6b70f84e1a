"""Planned steps of PyTorch whose tensors leave for a file and come back."""

from __future__ import annotations

import copy
import gc
import pickle
from types import SimpleNamespace

import pytest
import torch
from small_disks import run_on_a_disk
from torch_allocations import allocated_peak, rounded
from torch_steps import (
    GPT,
    ResNet,
    last_step,
    problem,
    same_bits,
    step,
)

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError
from memcfg.plan import SwapOut, gist, out_of_core, validate

F = torch.nn.functional
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),
]


def lowest(module, x, folder, **options):
    """The smallest limit of a step whose tensors may leave."""
    with pytest.raises(InfeasiblePlanError) as caught:
        mt.budget(module, 1, example=(x,), spill_to=folder, **options)
    torch._dynamo.reset()
    return caught.value.smallest_limit_bytes


def bytes_elsewhere(graph, plan):
    """The highest end of a copy, as the actions have it: an account of one's own."""
    outs = [each for each in plan.actions if isinstance(each, SwapOut)]
    return max(each.offset + graph.tensors[each.tensor].nbytes for each in outs)


@pytest.mark.parametrize("kind", [ResNet, GPT])
def test_below_what_computing_again_reaches_bits_and_bytes_are_as_planned(
    kind, tmp_path
):
    original, x, y = problem(kind)
    eager = copy.deepcopy(original)
    wanted = step(eager, eager, x, y)
    told = mt.estimate(copy.deepcopy(original), (x,))
    floor = lowest(copy.deepcopy(original), x, tmp_path)
    assert floor < told.floor_bytes
    between = (told.peak_bytes + told.floor_bytes) // 2
    for limit in (floor, between):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, example=(x,), spill_to=tmp_path)
        graph = last_step(run).whole[0]
        validate(graph, mt.get_budget(run).memory_plan)
        assert mt.get_budget(run).spill_bytes == bytes_elsewhere(
            graph, mt.get_budget(run).memory_plan
        )
        assert torch.equal(step(module, run, x, y), wanted)
        assert same_bits(eager, module)
        for each in module.parameters():
            each.grad = None
        used = allocated_peak(lambda m=module, r=run: step(m, r, x, y))
        state = [*module.parameters(), *module.buffers(), x]
        measured = used + sum(rounded(t.untyped_storage().nbytes()) for t in state)
        assert measured <= limit
        assert 0.98 <= mt.get_budget(run).predicted_peak_bytes / measured <= 1.02
        assert mt.get_budget(run).spill_bytes == bytes_elsewhere(
            graph, mt.get_budget(run).memory_plan
        )
        assert "Elsewhere (file)" in mt.get_budget(run).memory_report()
    assert not list(tmp_path.iterdir())  # files have no names


def test_nothing_leaves_unless_somebody_says_where_to(tmp_path):
    module, x, _ = problem(ResNet)
    floor = lowest(copy.deepcopy(module), x, tmp_path)
    for options in ({}, {"spill_to": "host"}):  # where tensors of the CPU are
        torch._dynamo.reset()
        with pytest.raises(InfeasiblePlanError):
            mt.budget(module, floor, example=(x,), **options)
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="say where, by budget"):
        mt.budget(module, floor, example=(x,), policy=out_of_core())


def test_where_there_is_too_little_elsewhere_the_limit_that_is_named_has_a_plan(
    tmp_path,
):
    module, x, _ = problem(ResNet)
    floor = lowest(copy.deepcopy(module), x, tmp_path)
    some = {"spill_to": tmp_path, "spill_limit": 2**16}
    with pytest.raises(InfeasiblePlanError, match="Raise spill_limit") as refused:
        mt.budget(copy.deepcopy(module), floor, example=(x,), **some)
    error = refused.value
    assert not error.is_smallest
    assert error.lower_bound_bytes < error.smallest_limit_bytes
    torch._dynamo.reset()
    mt.budget(module, error.smallest_limit_bytes, example=(x,), **some)


@pytest.fixture(scope="module")
def floor(tmp_path_factory):
    """A limit of a ResNet that it keeps by copies alone."""
    module, x, _ = problem(ResNet)
    costs = tmp_path_factory.getbasetemp() / "torch_costs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMCFG_TORCH_COSTS", str(costs))
        found = lowest(module, x, tmp_path_factory.mktemp("copies"))
        found += sum(rounded(each.nbytes) for each in module.parameters())  # gradients
        assert found < mt.estimate(module, (x,)).floor_bytes
    return found


@pytest.fixture
def small(tmp_path, floor, fresh_torch):
    """A ResNet under such a limit, and its plain twin."""
    original, x, y = problem(ResNet)
    plain = copy.deepcopy(original)
    run = mt.budget(original, floor, spill_to=tmp_path)
    assert mt.get_budget(run).spill_bytes == 0  # nothing is planned
    return SimpleNamespace(
        module=original, run=run, plain=plain, x=x, y=y, folder=tmp_path
    )


def without_budget(model):
    """A copy of a model that has no budget."""
    return mt.budget(copy.deepcopy(model), None)


def right(small):
    """Whether a step gives the bits of a plain one."""
    found = step(small.module, small.run, small.x, small.y)
    wanted = step(small.plain, small.plain, small.x, small.y)
    return torch.equal(found, wanted) and same_bits(small.module, small.plain)


def test_steps_use_the_same_bytes_one_after_another(small):
    assert right(small)
    most = mt.get_budget(small.run).spill_bytes
    for _ in range(3):
        assert right(small)
        assert mt.get_budget(small.run).spill_bytes == most


def test_a_forward_pass_without_backward_gives_its_bytes_back(small):
    assert right(small)
    most = mt.get_budget(small.run).spill_bytes
    for _ in range(2):
        made = small.run(small.x)
        del made
    with torch.no_grad():
        small.run(small.x)
    for mode in (small.run, small.plain):  # statistics, of as many passes
        mode.train()
    assert mt.get_budget(small.run).spill_bytes == most
    for _ in range(3):
        small.plain(small.x)
    assert right(small)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("on purpose")


def test_exceptions_between_forward_and_backward_give_bytes_back(small):
    assert right(small)
    most = mt.get_budget(small.run).spill_bytes
    loss = F.cross_entropy(_Fails.apply(small.run(small.x)), small.y)
    with pytest.raises(ArithmeticError, match="on purpose"):
        loss.backward()
    del loss
    gc.collect()
    small.plain(small.x)
    assert right(small)
    assert mt.get_budget(small.run).spill_bytes == most


def test_a_second_pass_without_room_is_refused_and_takes_no_bytes(small):
    """Two passes at a time need more than one at its floor, elsewhere as well."""
    assert right(small)
    most = mt.get_budget(small.run).spill_bytes
    for each in (small.module, small.plain):
        each.zero_grad()
    first = small.run(small.x)
    with pytest.raises(ResourceExhaustedError, match="each backward before the next"):
        small.run(small.x.flip(0))
    assert mt.get_budget(small.run).spill_bytes == most
    F.cross_entropy(first, small.y).backward()
    F.cross_entropy(small.plain(small.x), small.y).backward()
    assert same_bits(small.module, small.plain)
    del first
    assert right(small)


def leanest(graph, *, limit_bytes):
    """Plan with as little memory as there is a plan for, whatever the limit."""
    with pytest.raises(InfeasiblePlanError) as caught:
        out_of_core()(graph, limit_bytes=1)
    assert caught.value.smallest_limit_bytes <= limit_bytes
    return out_of_core()(graph, limit_bytes=caught.value.smallest_limit_bytes)


@pytest.fixture
def roomy(tmp_path):
    """A network whose tensors leave under a limit with room for two passes."""
    layers = [
        part for _ in range(4) for part in (torch.nn.Linear(64, 64), torch.nn.Tanh())
    ]
    module, x = torch.nn.Sequential(*layers), torch.randn(256, 64)
    limit = 2 * mt.estimate(module, (x,), times="nominal").peak_bytes
    options = {"spill_to": tmp_path, "policy": leanest, "times": "nominal"}
    run = mt.budget(module, limit, **options)
    run(x).sum().backward()
    most = mt.get_budget(run).spill_bytes
    assert most > 0
    module.zero_grad()
    return SimpleNamespace(
        module=module, run=run, x=x, limit=limit, most=most, options=options
    )


def test_two_forward_passes_before_backward_have_bytes_of_their_own(roomy):
    plain = without_budget(roomy.module)

    def both(run):
        first, second = run(roomy.x), run(roomy.x.flip(0))
        (first.square().sum() + second.square().sum()).backward()

    both(plain)
    used = allocated_peak(lambda: both(roomy.run))
    assert same_bits(roomy.module, plain)
    assert mt.get_budget(roomy.run).spill_bytes == 2 * roomy.most
    held = sum(rounded(each.nbytes) for each in (*plain.parameters(), roomy.x))
    assert used + held <= roomy.limit


def test_a_second_pass_is_refused_if_spill_limit_has_no_room_for_it(roomy):
    module, plain = copy.deepcopy(roomy.module), without_budget(roomy.module)
    torch._dynamo.reset()
    options = {**roomy.options, "spill_limit": 2 * roomy.most - 64}
    run = mt.budget(module, roomy.limit, **options)
    first = run(roomy.x)
    with pytest.raises(ResourceExhaustedError, match="Run backward before the next"):
        run(roomy.x.flip(0))
    first.sum().backward()
    plain(roomy.x).sum().backward()
    assert same_bits(module, plain)
    del first
    run(roomy.x.flip(0)).sum().backward()
    assert mt.get_budget(run).spill_bytes == roomy.most


def test_a_graph_that_is_retained_gives_the_same_gradients_twice(roomy):
    loss = roomy.run(roomy.x).square().mean()
    found = []
    for retain in (True, True, False):
        loss.backward(retain_graph=retain)
        found.append([each.grad.clone() for each in roomy.module.parameters()])
        roomy.module.zero_grad()
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))
    del loss
    without_budget(roomy.module)(roomy.x)
    roomy.run(roomy.x).square().mean().backward()
    found.append([each.grad for each in roomy.module.parameters()])
    assert all(map(torch.equal, found[0], found[-1]))


def test_evaluation_and_accumulation(small):
    run = small.run
    for each in (run, small.plain):
        F.cross_entropy(each(small.x), small.y).backward()
        each.eval()
        with torch.no_grad():
            each(small.x)
        each.train()
        F.cross_entropy(each(small.x), small.y).backward()
    assert same_bits(small.module, small.plain)


def test_copies_and_pickles_spill_too(small):
    assert right(small)
    for twin in (copy.deepcopy(small.run), pickle.loads(pickle.dumps(small.run))):
        torch._dynamo.reset()
        assert mt.get_budget(twin).spill_bytes == 0
        plain = without_budget(twin)
        found = step(twin, twin, small.x, small.y)
        assert torch.equal(found, step(plain, plain, small.x, small.y))
        assert same_bits(twin, plain)
        assert mt.get_budget(twin).spill_bytes == mt.get_budget(small.run).spill_bytes


def test_a_small_limit_of_the_file_is_planned_around(small):
    told = mt.estimate(copy.deepcopy(small.module), (small.x,))
    limit = (told.floor_bytes + told.peak_bytes) // 2
    for spill_limit in (2**20, 64):
        torch._dynamo.reset()
        module, plain = copy.deepcopy(small.module), copy.deepcopy(small.plain)
        run = mt.budget(
            module,
            limit,
            example=(small.x,),
            spill_to=small.folder,
            spill_limit=spill_limit,
        )
        found = step(module, run, small.x, small.y)
        assert torch.equal(found, step(plain, plain, small.x, small.y))
        assert same_bits(module, plain)
        assert mt.get_budget(run).spill_bytes <= spill_limit


def test_slow_lanes_make_a_plan_compute_again(small):
    told = mt.estimate(copy.deepcopy(small.module), (small.x,))
    limit = (told.floor_bytes + told.peak_bytes) // 2
    moved = []
    for rate in ("4GiB", "64KiB"):
        torch._dynamo.reset()
        run = mt.budget(
            small.module,
            limit,
            example=(small.x,),
            spill_to=small.folder,
            lane_bandwidth=rate,
        )
        moved.append(mt.get_budget(run).memory_plan.predicted.moved_bytes)
    assert moved[0] > moved[1]


def test_hooks_that_copy_what_is_saved_are_told_so(small):
    hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x)
    with hooks:
        loss = F.cross_entropy(small.run(small.x), small.y)
    with pytest.raises(RuntimeError, match="without hooks on saved tensors"):
        loss.backward()
    small.plain(small.x)
    with mt.saved_tensors("1GiB"):
        assert right(small)


def test_refusals(tmp_path):
    module, x, _ = problem(ResNet)
    for options, error, match in (
        ({"spill_limit": "1GiB"}, ValueError, "give 'host' or a folder"),
        ({"lane_bandwidth": "1GiB"}, ValueError, "lane_bandwidth is for spill_to"),
        ({"spill_to": tmp_path / "none"}, ValueError, "there is no folder"),
        ({"spill_to": 5}, TypeError, "a folder's path"),
        ({"spill_to": tmp_path, "spill_limit": 0}, ValueError, "at least a byte"),
        ({"spill_to": tmp_path, "inductor": True}, ValueError, "inductor"),
    ):
        with pytest.raises(error, match=match):
            mt.budget(module, "1GiB", **options)
    floor = mt.estimate(copy.deepcopy(module), (x,)).floor_bytes
    with pytest.raises(ValueError, match="gist_fp16 has codes"):
        mt.budget(module, floor, example=(x,), policy=gist(dpr="fp16"))


def test_a_full_disk_is_told_before_a_step(tmp_path):
    run_on_a_disk(
        tmp_path,
        256 * 1024,
        """
        import errno, sys, warnings
        warnings.simplefilter("ignore")
        import torch
        import memcfg.torch as mt
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        x = torch.randn(512, 256)
        told = mt.estimate(model, (x,), times="nominal")
        limit = (told.floor_bytes + told.peak_bytes) // 2
        options = dict(times="nominal", spill_to=".")
        try:
            mt.budget(model, limit, example=(x,), **options)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            assert "lower spill_limit" in str(error)
        else:
            raise SystemExit("it was made")
        torch._dynamo.reset()
        run = mt.budget(model, limit, example=(x,), spill_limit="128KiB", **options)
        run(x).sum().backward()
        """,
    )


class Dropped(torch.nn.Module):
    """Layers whose masks, and states of the generator, may leave."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(5))

    def forward(self, x):
        for each in self.inner:
            x = torch.nn.functional.dropout(torch.tanh(each(x)), 0.2)
        return x


def test_states_of_the_generator_leave_when_they_are_there(tmp_path):
    torch.manual_seed(0)
    original, x = Dropped(), torch.randn(1024, 64)
    floor = lowest(copy.deepcopy(original), x, tmp_path, times="nominal")
    wanted = copy.deepcopy(original)
    torch.manual_seed(1)
    wanted(x).square().sum().backward()
    for number in range(4):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        limit = floor + number * 2**18
        run = mt.budget(module, limit, spill_to=tmp_path, times="nominal")
        torch.manual_seed(1)
        run(x).square().sum().backward()
        assert same_bits(wanted, module)


def test_a_plan_with_what_lies_beside_is_valid(tmp_path):
    module, x = Dropped(), torch.randn(1024, 64)
    adam = torch.optim.Adam(module.parameters())
    options = {"optimizer": adam, "times": "nominal"}
    limit = lowest(module, x, tmp_path, **options)
    run = mt.budget(module, limit, example=(x,), spill_to=tmp_path, **options)
    graph, plan = last_step(run).whole
    validate(graph, plan)
    assert plan == mt.get_budget(run).memory_plan
    assert plan.predicted.moved_bytes > 0
    assert plan.summary.by_role["optimizer state"] > 0
