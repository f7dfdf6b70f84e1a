"""What a GPU's tensors do, on the CPU, with copies that are as late as they may be."""

from __future__ import annotations

import copy
import threading
from itertools import chain

import late_copies
import pytest
import torch
import torch_networks
from torch_steps import GPT, ResNet, inputs_of

import memcfg.torch as mt
from memcfg.devices import SpillPlace
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError
from memcfg.torch.saved import _saved_tensors
from memcfg.torch.spill import _stores
from memcfg.torch.spill._media import HostMemory
from memcfg.torch.spill._store import Store

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")


@pytest.fixture
def counts(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(3)
    return late_copies.install(monkeypatch)


@pytest.fixture
def as_gpu(monkeypatch, counts):
    """Saved tensors of the CPU are taken for a GPU's."""
    monkeypatch.setattr(_saved_tensors, "_GPU", "cpu")
    return counts


def steps(net, batches, around=None):
    """Losses and gradients of steps."""
    found = []
    for number, (x, y) in enumerate(batches):
        torch.manual_seed(number)
        net.zero_grad()
        if around is None:
            loss = F.cross_entropy(net(x), y)
        else:
            with around:
                loss = F.cross_entropy(net(x), y)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in net.parameters())])
    return found


@pytest.mark.parametrize("name", torch_networks.NETWORKS)
@pytest.mark.parametrize("part", [0.5, 0.2])
def test_saved_tensors_leave_and_come_back_with_the_same_bits(name, part, as_gpu):
    torch.manual_seed(0)
    net = torch_networks.NETWORKS[name]()
    batches = list(torch_networks.batches(name, 4))
    wanted = steps(copy.deepcopy(net), batches)
    whole = mt.saved_tensors("1GiB", spill_to="host", spill_limit="1MiB")
    steps(copy.deepcopy(net), batches, whole)
    assert as_gpu["locked"] == 0  # nothing left
    saved = whole.memory_report().saved_bytes
    part = max(part, 0.7 if name == "lstm" else 0.0)  # one tensor of its library's
    saver = mt.saved_tensors(int(part * saved), spill_to="host", spill_limit=2 * saved)
    found = steps(net, batches, saver)
    assert all(map(torch.equal, chain(*found), chain(*wanted)))
    report = saver.memory_report()
    assert saver.peak_bytes <= saver.limit_bytes
    assert saver.current_bytes == 0
    assert report.saved_bytes - report.spilled_bytes <= saver.limit_bytes
    assert report.read_bytes >= report.spilled_bytes > 0  # some again
    assert as_gpu["locked"] == 2 * saved == report.file_bytes
    assert "page-locked memory" in str(report)


def test_what_left_in_the_last_pass_is_copied_when_it_is_saved(as_gpu, monkeypatch):
    torch.manual_seed(0)
    net = torch_networks.NETWORKS["resnet"]()
    batches = list(torch_networks.batches("resnet", 3))
    whole = mt.saved_tensors("1GiB")
    steps(copy.deepcopy(net), batches[:1], whole)
    limit = whole.memory_report().saved_bytes * 3 // 4
    saver = mt.saved_tensors(limit, spill_to="host", spill_limit="16MiB")
    steps(net, batches[:1], saver)
    x, y = batches[1]
    begun = []
    begin = saver._begin_to_leave

    def watched(saved):
        begin(saved)
        if saved.leaving is not None:
            begun.append(saved)

    monkeypatch.setattr(saver, "_begin_to_leave", watched)
    with saver:
        loss = F.cross_entropy(net(x), y)
    gone = [each for each in saver._alive if each.spilled is not None]
    assert gone
    assert {*gone} <= {*begun}
    loss.backward()
    del loss
    begun.clear()
    gone.clear()
    assert saver.current_bytes == 0
    assert saver._store.take(16 * 2**20) is not None  # all of it is free again


def test_a_step_that_is_given_up_gives_everything_back(as_gpu):
    torch.manual_seed(0)
    net = torch_networks.NETWORKS["resnet"]()
    (x, y), *_ = torch_networks.batches("resnet", 1)
    saver = mt.saved_tensors("256KiB", spill_to="host", spill_limit="16MiB")
    for _ in range(3):
        with saver:
            loss = F.cross_entropy(net(x), y)
        del loss
        assert saver.current_bytes == 0
        assert saver._store.take(16 * 2**20) is not None
    with saver:
        F.cross_entropy(net(x), y).backward()


def test_too_little_room_on_the_host_is_said(as_gpu):
    net = torch_networks.NETWORKS["resnet"]()
    (x, y), *_ = torch_networks.batches("resnet", 1)
    for options, hint in (
        ({"spill_to": "host", "spill_limit": "64KiB"}, "spill_limit above"),
        ({}, "spill_to='host'"),
    ):
        saver = mt.saved_tensors("256KiB", **options)
        with saver, pytest.raises(ResourceExhaustedError, match=hint):
            F.cross_entropy(net(x), y)
        assert saver.current_bytes == 0


def test_a_tensor_that_is_changed_on_its_way_is_an_error_as_ever(as_gpu):
    saver = mt.saved_tensors("40KiB", spill_to="host")
    for _ in range(2):
        with saver:
            x = torch.ones(4096, requires_grad=True)
            y = x * 2
            z = y.exp()
            w = z.sin().exp().exp()
        w.sum().backward()
    with saver:
        x = torch.ones(4096, requires_grad=True)
        z = (x * 2).exp()
        w = z.sin().exp().exp()
        z.data_ptr()
        with torch.no_grad():
            z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        w.sum().backward()


class Elsewhere:
    """A tensor of a device, as far as a check of it looks."""

    def __init__(self, kind):
        self.device = torch.device(kind)
        self.dtype, self.shape, self.is_nested = torch.float32, (3,), False


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        ("cuda", {"codecs": ["zvc"]}, "leave codecs out, and give spill_to='host'"),
        ("cuda", {"spill_to": "."}, "a file takes tensors of the CPU"),
        ("mps", {}, "of the CPU and of GPUs: .* is on mps"),
    ],
)
def test_what_is_not_done_on_a_device_is_said(kind, options, match):
    saver = mt.saved_tensors("1MiB", **options)
    with pytest.raises(NotImplementedError, match=match):
        saver._check_device(Elsewhere(kind))
    mt.saved_tensors("1MiB", spill_to="host")._check_device(Elsewhere("cuda"))
    mt.saved_tensors("1MiB", codecs=[])._check_device(Elsewhere("cuda"))


# -- budgets ---------------------------------------------------------------------------


@pytest.fixture
def locked(counts, monkeypatch):
    """Budgets of the CPU spill to page-locked memory, as a GPU's."""
    stores = {}

    def of(self, devices):
        assert devices == {CPU}
        if self not in stores:
            made = Store(HostMemory(CPU), self.spill.limit_bytes)
            stores[self] = self._made[CPU] = made
        return stores[self]

    monkeypatch.setattr(_stores.Stores, "of", of)
    return counts


@pytest.mark.parametrize("kind", [ResNet, GPT])
def test_planned_steps_wait_for_what_they_read(kind, locked):
    original, x = kind(), inputs_of(kind)
    batches = [(x, torch.randint(0, 10, (x.shape[0],)))] * 3
    plain = copy.deepcopy(original)
    wanted = steps(plain, batches)
    with pytest.raises(InfeasiblePlanError) as caught:
        mt.budget(original, 1, example=(x,), spill_to="host")
    floor = caught.value.smallest_limit_bytes
    torch._dynamo.reset()
    run = mt.budget(original, floor, spill_to="host")
    found = steps(run, batches)
    assert all(map(torch.equal, chain(*found), chain(*wanted)))
    assert (
        mt.get_budget(run).spill_bytes == locked["locked"] > 0
    )  # one region, to the byte
    assert locked["made"] > 0 == locked["dropped"]
    assert "Elsewhere (host)" in mt.get_budget(run).memory_report()
    run.zero_grad()
    torch.manual_seed(0)
    loss = F.cross_entropy(run(x), batches[0][1])
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    plain.zero_grad()
    steps(plain, batches[:1])
    for mine, its in zip(run.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    del loss
    run.zero_grad()
    made = run(x)
    del made
    assert mt.get_budget(run).spill_bytes == locked["locked"]


def test_stores_are_refused_where_tensors_cannot_go():
    gpus = {torch.device("cuda", 0), CPU}
    for spill, devices, match in (
        (
            SpillPlace("file", "/tmp"),
            gpus,
            r"of the host: budget\(\.\.\., spill_to='host'\)",
        ),
        (SpillPlace("host", None, None, 1e9), gpus, "lane_bandwidth is not for a GPU"),
        (SpillPlace("host"), {*gpus, torch.device("cuda", 1)}, "for one device"),
    ):
        with pytest.raises(_stores.SpillRefusedError, match=match):
            _stores.Stores(spill, measured=False).of(devices)
    assert _stores.Stores(SpillPlace("host"), measured=False).of({CPU}) is None
