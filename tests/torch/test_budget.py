"""Planned steps of PyTorch: bits as without a plan, and bytes as predicted."""

from __future__ import annotations

import copy
import math
import pickle
import traceback
import warnings
from functools import partial

import pytest
import torch
from timelines import alive, overlaps
from torch_allocations import allocated_peak, rounded
from torch_steps import (
    GPT,
    LSTM,
    NETWORKS,
    VGG,
    ResNet,
    last_step,
    problem,
    same_bits,
    step,
)

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import Graph
from memcfg.plan import auto, validate
from memcfg.units import format_bytes

F = torch.nn.functional
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


def state_bytes(module, x):
    tensors = [*module.parameters(), *module.buffers(), x]
    return sum(rounded(each.untyped_storage().nbytes()) for each in tensors)


@pytest.mark.parametrize("kind", [each for each in NETWORKS if each is not LSTM])
@pytest.mark.always
def test_bits_are_eagers_and_the_peak_is_as_predicted_and_within_the_limit(kind):
    original, x, y = problem(kind)
    eager = copy.deepcopy(original)
    wanted = step(eager, eager, x, y)
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        told = mt.estimate(copy.deepcopy(original), (x,))  # each op is measured
    peaks = []
    for limit in (told.peak_bytes, told.floor_bytes):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, example=(x,))
        assert torch.equal(step(module, run, x, y), wanted)
        assert same_bits(eager, module)
        for each in module.parameters():
            each.grad = None
        used = allocated_peak(lambda m=module, r=run: step(m, r, x, y))
        measured = used + state_bytes(module, x)
        assert measured <= limit
        assert 0.98 <= mt.get_budget(run).predicted_peak_bytes / measured <= 1.02
        peaks.append(mt.get_budget(run).predicted_peak_bytes)
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize(
    "last", [torch.nn.MaxPool2d(2), torch.nn.AdaptiveMaxPool2d(16)]
)
def test_what_the_user_holds_is_not_made_again_with_what_is_saved_beside_it(last):
    """The indices of a maximum are saved; the maximum itself is what is shown."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), last
    )
    x = torch.randn(4, 3, 32, 32)
    with pytest.raises(InfeasiblePlanError) as caught:
        mt.budget(copy.deepcopy(module), 1, example=(x,), times="nominal")
    limit = caught.value.smallest_limit_bytes
    run = mt.budget(module, limit, example=(x,), times="nominal")

    def whole():
        for each in module.parameters():
            each.grad = None
        shown = run(x)  # held, as a loop's variable is
        shown.sum().backward()

    whole()
    for each in module.parameters():
        each.grad = None
    assert allocated_peak(whole) + state_bytes(module, x) <= limit


class Refusing:
    """A policy that has no plan, whatever the limit."""

    name = "refusing"

    def __call__(self, graph, limit_bytes=None):
        raise InfeasiblePlanError(
            "no plan today", smallest_limit_bytes=2**30, lower_bound_bytes=2**10
        )


def test_a_policy_that_refuses_every_limit_is_told_of_with_the_steps_overhead():
    module, x, _ = problem(ResNet)
    with pytest.raises(InfeasiblePlanError, match="no plan today") as caught:
        mt.budget(module, 2**20, example=(x,), policy=Refusing(), times="nominal")
    error = caught.value
    assert "training step does not fit 1048576 B" in str(error)
    assert "are taken: loss and its gradient" in str(error)
    assert error.smallest_limit_bytes == 2**30 + 2 * 64  # the scalars of the loss
    assert error.lower_bound_bytes == 2**10 + 2 * 64
    assert error.limit_bytes == 2**20
    assert not error.is_smallest


def test_each_op_of_an_lstm_is_measured():
    module, x, _ = problem(LSTM)
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        mt.estimate(module, (x,))


def test_measuring_writes_nothing_and_leaves_a_profiler_alone(
    capfd, tmp_path, monkeypatch
):
    module, x, _ = problem(VGG)
    monkeypatch.setenv("MEMCFG_TORCH_COSTS", str(tmp_path / "one"))
    told = mt.estimate(module, (x,))
    assert told.peak_bytes > mt.estimate(module, (x,), times="nominal").peak_bytes
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("MEMCFG_TORCH_COSTS", str(tmp_path / "other"))
    with torch.profiler.profile(profile_memory=True) as seen:
        again = mt.estimate(module, (x,))
        torch.ones(7).erfinv()
    assert again.peak_bytes == told.peak_bytes
    assert any(each.name == "aten::erfinv" for each in seen.events())


@pytest.mark.parametrize("kind", [ResNet, VGG])
def test_below_the_floor_nothing_runs_and_the_module_is_named(kind):
    module, x, _ = problem(kind)
    floor = mt.estimate(module, (x,)).floor_bytes
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InfeasiblePlanError, match="of module '") as caught:
        mt.budget(module, floor - 64, example=(x,))
    assert caught.value.smallest_limit_bytes == floor
    run = mt.budget(module, floor - 64)
    with pytest.raises(InfeasiblePlanError):
        run(x)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("spill_to", [None, "folder"])
def test_one_sample_is_not_told_to_be_fewer(spill_to, tmp_path):
    module, x, _ = problem(VGG)
    options = {} if spill_to is None else {"spill_to": tmp_path}
    for samples in (1, 2):
        with pytest.raises(InfeasiblePlanError) as caught:
            mt.budget(copy.deepcopy(module), 2**10, example=(x[:samples],), **options)
        assert caught.value.hint.startswith("Raise the limit")
        assert ("lower the batch size" in caught.value.hint) == (samples > 1)


def test_estimate_counts_the_optimizer_and_prints_tables():
    module, x, _ = problem(ResNet)
    plain = mt.estimate(module, (x,), times="nominal")
    adam = torch.optim.Adam(module.parameters())
    told = mt.estimate(module, (x,), optimizer=adam, times="nominal")
    own = sum(rounded(p.nbytes) for p in module.parameters())
    count = len(list(module.parameters()))
    assert told.by_role["optimizer state"] == 2 * own + 64 * count
    assert told.peak_bytes == plain.peak_bytes + told.by_role["optimizer state"]
    assert sum(told.by_role.values()) == told.peak_bytes
    assert "optimizer state" in str(told)
    assert any(name.startswith("blocks.") for name in told.by_module)


def test_an_exported_graph_is_planned_by_memcfg(tmp_path):
    module, x, _ = problem(ResNet)
    path = tmp_path / "graph.json"
    mt.export(module, (x,), path, times="nominal")
    graph = Graph.from_json(path.read_text())
    most = auto()(graph).peak_bytes
    plan = auto()(graph, limit_bytes=most * 2 // 3)
    validate(graph, plan)
    assert plan.peak_bytes <= most * 2 // 3
    told = mt.estimate(module, (x,), times="nominal")
    beside = told.by_role["loss and its gradient"]  # no part of the graph
    assert beside == 2 * 64
    assert told.peak_bytes == most + beside


def budgeted(kind=ResNet, share=0.5):
    original, x, y = problem(kind)
    told = mt.estimate(copy.deepcopy(original), (x,))
    limit = told.floor_bytes + int(share * (told.peak_bytes - told.floor_bytes))
    return original, mt.budget(original, limit), x, y


def test_state_dict_modes_and_copies_are_the_models(tmp_path):
    original, run, x, y = budgeted()
    assert list(run.state_dict()) == list(original.state_dict())
    assert [n for n, _ in run.named_parameters()] == [
        n for n, _ in original.named_parameters()
    ]
    run.eval()
    assert not original.training
    run.train()
    assert original.training
    wanted = step(original, run, x, y)
    twin = copy.deepcopy(run)
    assert mt.get_budget(twin).module is twin is not original
    for each in original.parameters():
        each.grad = None
    torch.save(run.state_dict(), tmp_path / "state.pt")
    fresh = ResNet()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt"))
    plain = copy.deepcopy(fresh)
    assert torch.equal(step(twin, twin, x, y), step(plain, plain, x, y))
    assert same_bits(twin, plain)
    assert torch.isfinite(wanted)


def test_copies_and_pickles_count_the_state_of_the_optimizer():
    module, x, _ = problem(ResNet)
    adam = torch.optim.Adam(module.parameters())
    run = mt.budget(module, math.inf, example=(x,), optimizer=adam, times="nominal")
    wanted = mt.get_budget(run).predicted_peak_bytes
    plain = mt.budget(copy.deepcopy(module), math.inf, example=(x,), times="nominal")
    assert wanted > mt.get_budget(plain).predicted_peak_bytes
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        budget = mt.get_budget(twin)
        assert budget.module is twin
        assert budget.predicted_peak_bytes == 0
        torch._dynamo.reset()
        budget.plan((x,), {})
        assert budget.predicted_peak_bytes == wanted


def test_evaluation_without_gradients_between_steps():
    original, run, x, y = budgeted()
    plain = copy.deepcopy(original)
    for _ in range(2):
        assert torch.equal(step(original, run, x, y), step(plain, plain, x, y))
        run.eval(), plain.eval()
        with torch.no_grad():
            assert torch.equal(run(x), plain(x))
        run.train(), plain.train()
    assert same_bits(original, plain)


def test_accumulated_gradients():
    original, x, y = problem(ResNet)
    plain = copy.deepcopy(original)
    told = mt.estimate(copy.deepcopy(original), (x,))
    own = sum(rounded(p.nbytes) for p in original.parameters())
    run = mt.budget(original, told.floor_bytes + own)
    for module, call in ((original, run), (plain, plain)):
        for _ in range(3):
            F.cross_entropy(call(x), y).backward()
        assert module is not None
    assert same_bits(original, plain)


def test_autocast():
    original, run, x, y = budgeted(VGG, 4.0)  # kernels without AMX need more scratch
    plain = copy.deepcopy(original)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = step(original, run, x, y), step(plain, plain, x, y)
    assert torch.equal(found, wanted)
    assert same_bits(original, plain)


def test_a_new_shape_is_planned_anew_with_one_warning():
    original, run, x, y = budgeted()
    plain = copy.deepcopy(original)

    def same(rows):
        found = step(original, run, x[:rows], y[:rows])
        return torch.equal(found, step(plain, plain, x[:rows], y[:rows]))

    assert same(8)
    with pytest.warns(RuntimeWarning, match="planned anew"):
        assert same(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert same(2)
    assert not any("planned anew" in str(each.message) for each in caught)


def last_peak(run, x):
    """Train a step; return its plan's peak, which the report has as well."""
    run(x).sum().backward()
    plan, head = (
        mt.get_budget(run).memory_plan,
        mt.get_budget(run).memory_report().splitlines()[0],
    )
    used = last_step(run).peak_bytes
    assert head.startswith(f"Peak of a step: {format_bytes(used)}")
    return plan.peak_bytes


@pytest.mark.filterwarnings("ignore:a step is traced")
def test_plan_and_report_are_of_the_training_step_that_ran_last():
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    run = mt.budget(module, "64MiB", times="nominal")
    x = {rows: torch.randn(rows, 64) for rows in (64, 256, 2048)}

    def peak(rows):
        return last_peak(run, x[rows])

    first = peak(2048)
    so_far = sum(rounded(each.nbytes) for each in module.parameters())
    assert peak(2048) == first + so_far
    module.zero_grad()
    small = peak(64)
    assert small < first
    assert peak(64) == small + so_far
    with torch.no_grad():
        run(x[256])
    assert mt.get_budget(run).memory_plan.peak_bytes == small + so_far
    assert peak(2048) == first + so_far  # nothing is planned anew
    module.zero_grad()
    assert peak(64) == small
    assert peak(256) > small
    assert mt.get_budget(run).predicted_peak_bytes >= first


@pytest.mark.filterwarnings("ignore:a step is traced")
def test_plan_and_report_are_of_the_step_that_ran_last_with_inductor():
    module, x = torch.nn.Linear(8, 8), torch.randn(64, 8)
    run = mt.budget(module, "1MiB", times="nominal", inductor=True)
    first = last_peak(run, x)
    module.zero_grad()
    assert last_peak(run, x[:16]) < first
    module.zero_grad()
    assert last_peak(run, x) == first


class _Fails(torch.autograd.Function):
    fails = True

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if _Fails.fails:
            raise ArithmeticError("on purpose")
        return gradient


def test_an_exception_in_backward_leaves_the_next_step_right():
    original, run, x, y = budgeted()
    plain = copy.deepcopy(original)
    _Fails.fails = True
    with pytest.raises(ArithmeticError, match="on purpose"):
        F.cross_entropy(_Fails.apply(run(x)), y).backward()
    step(plain, plain, x, y)
    assert torch.equal(step(original, run, x, y), step(plain, plain, x, y))
    assert same_bits(original, plain)


class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.one(x)
        print("half way")
        return self.other(x)


def test_a_backend_refuses_what_breaks_into_several_graphs():
    run = torch.compile(Halves(), backend=mt.backend("1GiB"), dynamic=False)
    with pytest.raises(Exception, match="breaks into several graphs"):
        run(torch.ones(2, 8))


def test_what_is_not_the_models_is_told():
    model = torch.nn.Linear(8, 8)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    for call in (mt.budget, mt.estimate):
        given = ("1GiB",) if call is mt.budget else ()
        with pytest.raises(TypeError, match="is not what Linear takes: too many"):
            call(model, *given, example=(torch.ones(2, 8), torch.ones(2)))
        with pytest.raises(TypeError, match="is not what Linear takes: missing"):
            call(model, *given, example_kwargs={"foo": torch.ones(2, 8)})
        with pytest.raises(ValueError, match="none of the model's parameters"):
            call(model, *given, example=(torch.ones(2, 8),), optimizer=other)
    outer = torch.nn.Sequential(mt.budget(model, "1GiB"))
    with pytest.raises(ValueError, match="the module '0' of the model has a budget"):
        mt.budget(outer, "1GiB")


def test_shapes_that_depend_on_data_are_told_in_a_sentence():
    class Masked(torch.nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return x[x[:, 0] > 0].relu()

    with pytest.warns(RuntimeWarning, match="shape that depends on data"):
        mt.budget(Masked(8, 8), math.inf, times="nominal")(torch.ones(2, 8))
    with pytest.raises(ValueError, match="shape that depends on data"):
        mt.estimate(Masked(8, 8), (torch.ones(2, 8),), times="nominal")


@pytest.mark.parametrize("plain_steps", [0, 1])  # by which backward is compiled
def test_a_graph_that_is_retained_gives_the_same_gradients_twice(plain_steps):
    original, run, x, y = budgeted(share=2)  # retained tensors are counted
    for _ in range(plain_steps):
        step(original, run, x, y)
        original.zero_grad()
    loss = F.cross_entropy(run(x), y)
    loss.backward(retain_graph=True)
    first = [each.grad.clone() for each in original.parameters()]
    for each in original.parameters():
        each.grad = None
    loss.backward()
    for before, each in zip(first, original.parameters(), strict=True):
        assert torch.equal(before, each.grad)


def test_the_report_tells_peak_roles_and_modules():
    original, run, x, y = budgeted()
    assert "before" in mt.get_budget(run).memory_report()
    step(original, run, x, y)
    text = mt.get_budget(run).memory_report()
    assert all(each in text for each in ("parameter", "activation", "blocks."))
    assert str(mt.get_budget(run).memory_plan).startswith("Plan of 'training step'")


@pytest.mark.parametrize("share", [None, 0, 0.5])
def test_plan_and_report_have_one_limit_and_one_peak(share):
    module, x, y = problem(GPT)
    adam = torch.optim.Adam(module.parameters())
    told = mt.estimate(module, (x,), optimizer=adam, times="nominal")
    limit = math.inf
    if share is not None:
        limit = told.floor_bytes + int(share * (told.peak_bytes - told.floor_bytes))
    run = mt.budget(module, limit, example=(x,), optimizer=adam, times="nominal")
    plan, text = mt.get_budget(run).memory_plan, mt.get_budget(run).memory_report()
    assert plan.limit_bytes == (None if share is None else limit)
    validate(last_step(run).whole[0], plan)
    assert plan.summary.by_role["optimizer state"] == told.by_role["optimizer state"]
    assert sum(plan.summary.by_role.values()) <= plan.peak_bytes
    predicted, arena = mt.get_budget(run).predicted_peak_bytes, plan.peak_bytes
    assert predicted <= arena
    head = text.splitlines()[0]
    assert head.startswith(f"Peak of a step: {format_bytes(predicted)}")
    assert (f"{format_bytes(arena)} in one arena" in head) == (arena != predicted)
    said = "no limit" if share is None else f"limit {format_bytes(limit)}"
    assert said in head
    step(module, run, x, y)
    assert mt.get_budget(run).memory_plan == plan


def test_refusals():
    with pytest.raises(TypeError, match="Module"):
        mt.budget(len, "1MiB")
    with pytest.raises(ValueError, match="times"):
        mt.budget(ResNet(), "1MiB", times="fast")


@pytest.mark.always
def test_inductor_compiles_planned_graphs():
    nn = torch.nn
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)]
    plain = nn.Sequential(*layers, nn.Linear(16, 10))
    original = copy.deepcopy(plain)
    x, y = torch.randn(4, 8), torch.randint(0, 10, (4,))
    told = mt.estimate(copy.deepcopy(plain), (x,), times="nominal")
    limit = 2 * told.peak_bytes  # of the ops that inductor has them in, too
    run = mt.budget(original, limit, times="nominal", inductor=True)
    for mode in (plain.eval, plain.train):  # in training dropout draws other numbers
        original.train(mode().training)
        loss, wanted = step(original, run, x, y), step(plain, plain, x, y)
        if not plain.training:
            torch.testing.assert_close(loss, wanted)
            for one, other in zip(
                original.parameters(), plain.parameters(), strict=True
            ):
                torch.testing.assert_close(one.grad, other.grad)
    assert torch.isfinite(loss)


class Wide(torch.nn.Module):
    """Outputs that are most of a step."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 3000)

    def forward(self, x):
        return {"logits": self.inner(x), "kind": "wide"}


def entropy(out):
    made = out["logits"]
    return F.cross_entropy(made, made.new_zeros(len(made), dtype=torch.long))


def mean(out):
    return out["logits"].mean()


def square(out):
    return out["logits"].square().mean()


@pytest.mark.parametrize("loss", [entropy, mean, square])
def test_a_loss_that_is_told_is_counted_as_it_is(loss):
    original, x = Wide(), torch.randn(512, 16)
    run = mt.budget(original, math.inf, example=(x,), loss=loss)
    predicted = mt.get_budget(run).predicted_peak_bytes
    guessed = mt.budget(copy.deepcopy(original), math.inf, example=(x,))
    assert predicted != mt.get_budget(guessed).predicted_peak_bytes
    for rows in (512, 100):  # the second shape is traced anew
        run.zero_grad()

        def whole(rows=rows):
            out = run(x[:rows])  # a step holds its outputs to its end
            loss(out).backward()

        used = allocated_peak(whole)
        if rows == 512:
            assert mt.get_budget(run).predicted_peak_bytes == predicted
            assert 0.98 <= predicted / (used + state_bytes(original, x)) <= 1.02


def test_a_loss_that_cannot_be_traced_is_reserved_for_with_a_warning():
    targets = torch.zeros(8, dtype=torch.long)
    run = mt.budget(
        Wide(), math.inf, loss=lambda out: F.cross_entropy(out["logits"], targets)
    )
    run(torch.randn(8, 16))
    with pytest.warns(RuntimeWarning, match=r"loss cannot be traced .*\(4, 3000\)"):
        run(torch.randn(4, 16))
    reserved = mt.budget(Wide(), math.inf, example=(torch.randn(4, 16),))
    known, other = (mt.get_budget(each).memory_plan for each in (run, reserved))
    assert known.peak_bytes == other.peak_bytes
    with pytest.raises(ValueError, match="no scalar"):
        mt.budget(Wide(), math.inf, example=(torch.randn(8, 16),), loss=len)
    with torch.no_grad():  # no loss, then
        assert len(run(torch.randn(4, 16))["logits"]) == 4


class Stepped(torch.optim.SGD):
    """An optimizer whose arguments have other names than its options."""

    def __init__(self, parameters, speed):
        super().__init__(parameters, lr=speed, momentum=0.9)


class Asked(torch.optim.SGD):
    """An optimizer that steps only with a closure."""

    def step(self, closure):
        return closure()


def scheduled(optimizer):
    """Have a scheduler put its own function in place of `step`."""
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    ("make", "arrays"),
    [
        (torch.optim.AdamW, 2),
        (partial(torch.optim.Adam, fused=True), 2),
        (partial(torch.optim.SGD, lr=0.1), 0),
        (partial(Stepped, speed=0.1), 1),
        (lambda parameters: scheduled(torch.optim.Adam(parameters)), 2),
    ],
)
def test_the_state_of_an_optimizer_is_known_before_it_steps(make, arrays):
    module, x, y = problem(ResNet)
    optimizer = make(module.parameters())
    told = mt.estimate(module, (x,), optimizer=optimizer, times="nominal")
    step(module, module, x, y)
    optimizer.step()
    state = [
        each
        for held in optimizer.state.values()
        for each in held.values()
        if isinstance(each, torch.Tensor)
    ]
    assert len([each for each in state if each.ndim]) <= arrays * len(
        [*module.parameters()]
    )
    own = sum(rounded(each.nbytes) for each in state)
    assert told.by_role.get("optimizer state", 0) == own


def test_an_optimizer_that_cannot_be_tried_is_counted_once_it_has_stepped():
    module, x, y = problem(ResNet)
    optimizer = Asked(module.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"Asked keeps .* step once before"):
        mt.estimate(module, (x,), optimizer=optimizer, times="nominal")
    outer = Stepped(module.parameters(), 0.1)
    outer.inner = torch.optim.SGD(module.parameters(), lr=1.0)
    step(module, module, x, y)
    before = [each.detach().clone() for each in module.parameters()]
    with pytest.raises(ValueError, match="holds another optimizer"):
        mt.estimate(module, (x,), optimizer=outer, times="nominal")
    assert all(map(torch.equal, before, module.parameters()))
    with pytest.raises(TypeError, match=r"torch.optim.Optimizer, not str"):
        mt.budget(module, math.inf, optimizer="adam")


@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_are_updated_without_a_backward_phase(frozen):
    original, x, _ = problem(ResNet)
    original.requires_grad_(not frozen)
    plain = copy.deepcopy(original)
    run = mt.budget(original, math.inf, times="nominal")
    with torch.set_grad_enabled(frozen):
        for _ in range(2):
            assert torch.equal(run(x), plain(x))
    for one, other in zip(original.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)


def test_many_shapes_and_many_models_of_a_class_are_traced():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    run = mt.budget(model, math.inf, times="nominal", on_new_shape="replan")
    for rows in range(1, 10):  # more than PyTorch's eight
        run(torch.ones(rows, 4)).sum().backward()
    for _ in range(9):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        mt.budget(model, math.inf, times="nominal")(torch.ones(1, 4)).sum().backward()


class Branches(torch.nn.Module):
    def forward(self, x):
        return x.relu() if x.sum() > 0 else x


def shown(call):
    """What a user sees of an error, and the error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is
        call()
    error = caught.value
    return "".join(traceback.format_exception(error)), error


def test_a_refusal_is_shown_without_the_frames_of_pytorchs_compiler():
    module, x, _ = problem(VGG)
    calls = (
        lambda: mt.budget(module, 64, example=(x,), times="nominal"),
        lambda: mt.budget(module, 64, times="nominal")(x),
        lambda: mt.estimate(Branches(), (x,), times="nominal"),
        lambda: mt.export(Branches(), (x,), "no-file", times="nominal"),
    )
    for call in calls:
        text, error = shown(call)
        # One frame of PyTorch's keeps an outer compiler out of the model.
        frames = [line for line in text.splitlines() if "eval_frame.py" not in line]
        assert "_dynamo" not in "".join(frames)
        assert "_functorch" not in text
        assert len(text.splitlines()) < 50
        cause = error.__context__  # for debugging: with all frames
        assert type(cause).__module__ == "torch._dynamo.exc"
        assert "_dynamo" in "".join(traceback.format_tb(cause.__traceback__))
    branch = Branches.forward.__code__.co_firstlineno + 1
    assert f"test_budget.py:{branch}, in forward" in text


def test_a_backend_is_named_by_its_limit_where_pytorch_quotes_it():
    module, x, _ = problem(VGG)
    planner = mt.backend(64, times="nominal")
    assert repr(planner) == "memcfg.torch.backend('64 B')"
    assert repr(mt.backend(None)) == "memcfg.torch.backend(None)"
    text, error = shown(lambda: torch.compile(module, backend=planner)(x))
    assert isinstance(error.inner_exception, InfeasiblePlanError)
    assert """backend="memcfg.torch.backend('64 B')" raised:\nInfeasible""" in text
    assert "_functorch" not in text


def test_what_cannot_be_traced_is_told_in_a_sentence():
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"one graph \(.*saved_tensors needs none"):
        mt.estimate(Branches(), example=(x,))
    with pytest.warns(RuntimeWarning, match=r"one graph \(.*is not planned"):
        mt.budget(Branches(), math.inf, example=(x,))
    for call in (mt.estimate, partial(mt.budget, limit=math.inf)):
        with pytest.raises(TypeError, match=r"such as \(x,\), not Tensor"):
            call(Branches(), example=x)
    with pytest.raises(ValueError, match="more than 0"):
        mt.budget(Branches(), 0)
    told = mt.estimate(torch.nn.Flatten(), (x,))  # a view: there is no op
    assert told.peak_bytes == told.floor_bytes


class Views(torch.nn.Module):
    """Outputs that share a storage, or show it more than once."""

    def __init__(self, views):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 256)
        self.views = views

    def forward(self, x):
        return self.views(self.last(self.first(x).tanh()).tanh())


@pytest.mark.parametrize(
    ("views", "most"),
    [
        (lambda y: (y[:10],), 1.02),
        (lambda y: (y.unsqueeze(0).expand(3, 512, 256),), 1.02),
        (lambda y: (y, y.t()), 1.3),
        (lambda y: (y, y[:, :1].expand(512, 256)), 1.3),
    ],
)
def test_a_loss_that_is_not_told_is_reserved_for_all_that_outputs_show(views, most):
    module, x = Views(views), torch.randn(512, 64)
    run = mt.budget(module, math.inf, example=(x,))

    def whole():
        run.zero_grad()
        out = run(x)
        sum(each.square().mean() for each in out).backward()

    whole()
    run.zero_grad()
    used = allocated_peak(whole) + state_bytes(module, x)
    assert 0.98 <= mt.get_budget(run).predicted_peak_bytes / used <= most


@pytest.mark.parametrize("loss", [entropy, mean, square])
def test_a_budget_keeps_the_floor_of_an_estimate(loss):
    original, x = Wide(), torch.randn(512, 16)
    told = mt.estimate(original, (x,), loss=loss, times="nominal")
    for limit in (told.peak_bytes, told.floor_bytes):
        mt.budget(original, limit, example=(x,), loss=loss, times="nominal")


def test_a_backend_without_static_shapes_says_what_to_pass():
    planner = mt.backend(None, times="nominal")
    run = torch.compile(torch.nn.Linear(4, 4), backend=planner)
    run(torch.ones(3, 4))
    with pytest.raises(Exception, match=r"pass torch.compile\(dynamic=False\)"):
        run(torch.ones(5, 4))


class Named(torch.nn.Module):
    """As models of text: inputs by name, its own loss where labels are given."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 32)
        self.inner = torch.nn.Linear(32, 64)
        self.head = torch.nn.Linear(64, 50)

    def forward(self, input_ids, *, labels=None):
        logits = self.head(torch.tanh(self.inner(self.words(input_ids))))
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("mixed", [False, True])
def test_inputs_by_name(tmp_path, mixed):
    ids, labels = torch.randint(50, (16, 24)), torch.randint(50, (16, 24))
    args = (ids,) if mixed else ()
    named = {"labels": labels} if mixed else {"input_ids": ids, "labels": labels}
    original = Named()
    eager = copy.deepcopy(original)
    told = mt.estimate(original, args, example_kwargs=named)
    if not mixed:
        assert mt.estimate(original, example_kwargs=named) == told
    labelled = mt.estimate(original, (ids,))
    assert labelled.peak_bytes != told.peak_bytes
    path = tmp_path / "graph.json"
    mt.export(
        *(original, args, path), example_kwargs=named, loss=lambda out: out["loss"]
    )
    graph = Graph.from_json(path.read_text())
    nbytes = rounded(labels.nbytes)
    inputs = [each.nbytes for each in graph.tensors if each.role == "input"]
    assert inputs.count(nbytes) == 2
    for limit in (told.peak_bytes, told.floor_bytes):
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, example=args, example_kwargs=named)
        planned = mt.get_budget(run).memory_plan
        run(*args, **named)["loss"].backward()
        assert mt.get_budget(run).memory_plan == planned
        eager.zero_grad()
        eager(ids, labels=labels)["loss"].backward()
        assert same_bits(module, eager)
    with pytest.raises(InfeasiblePlanError):
        mt.budget(original, told.floor_bytes - 64, example_kwargs=named, example=args)


def test_inputs_by_name_are_a_mapping():
    for call in (mt.estimate, partial(mt.budget, limit=math.inf)):
        with pytest.raises(TypeError, match=r"by name, such as .*, not tuple"):
            call(Named(), example_kwargs=(torch.zeros(2, 2),))
    with pytest.raises(TypeError, match="not list"):
        mt.export(Named(), (), "graph.json", example_kwargs=[])


def test_the_timeline_has_the_bytes_of_the_report_and_the_lines_of_the_model(tmp_path):
    original, x, y = problem(GPT)
    model = mt.budget(original, math.inf, times="nominal")
    with pytest.raises(RuntimeError, match="nothing is planned"):
        mt.get_budget(model).memory_timeline()
    step(model, model, x, y)
    timeline = mt.get_budget(model).memory_timeline()
    live = [event.live_bytes for event in timeline.events]
    assert max(live) == mt.get_budget(model).predicted_peak_bytes
    for number in {0, live.index(max(live)), len(live) - 1}:
        assert live[number] == sum(box.nbytes for box in alive(timeline, number))
    assert overlaps(timeline.boxes) == []
    lines = {box.line.rpartition(":")[0] for box in timeline.boxes if box.line}
    assert any(path.endswith("torch_steps.py") for path in lines)
    timeline.save(tmp_path / "step.html")


@pytest.mark.parametrize("times", ["nominal", "measured"])
def test_the_timeline_names_what_the_program_does(times):
    original, x, y = problem(VGG)
    optimizer = torch.optim.Adam(original.parameters())
    model = mt.budget(original, math.inf, optimizer=optimizer, times=times)
    for _ in range(2):
        optimizer.zero_grad()
        step(model, model, x, y)
        optimizer.step()
    timeline = mt.get_budget(model).memory_timeline()
    by_role = {}
    for box in timeline.boxes:
        by_role.setdefault(box.role, set()).add(box.name)
    weights = {name for name, _ in original.named_parameters()}
    assert by_role["parameter"] >= weights
    assert "optimizer state" in by_role["optimizer_state"]
    assert not any("primals" in box.name for box in timeline.boxes)
    assert ("nominal" in str(timeline)) is (times == "nominal")
