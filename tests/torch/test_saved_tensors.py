"""`memcfg.torch.saved_tensors`: bits, bytes, and what PyTorch does with hooks."""

from __future__ import annotations

import copy
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import traced
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module
from torch_networks import NETWORKS, batches

import memcfg.torch as mt
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

F = torch.nn.functional
KIB, MIB = 2**10, 2**20
BIG = "1GiB"


def train(name, context, *, threads=1, steps=3, watch=None):
    """Losses, and gradients of the last step, with what is done after each module."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = NETWORKS[name]()
    if watch is not None:
        for each in model.modules():
            each.register_forward_hook(lambda *found: watched(found[-1], watch))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for x, y in batches(name, steps):
        optimizer.zero_grad()
        if context is None:
            loss = F.cross_entropy(model(x), y)
        else:
            with context:
                loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [each.grad.clone() for each in model.parameters()]


def watched(out, watch):
    watch()
    if isinstance(out, torch.Tensor) and out.requires_grad:
        out.register_hook(lambda _: watch())


def same_bits(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        assert torch.equal(a, b)


def all_bytes(name):
    """What plain PyTorch saves of a network."""
    saver = mt.saved_tensors(BIG, [])
    train(name, saver, steps=1)
    return saver.memory_report().saved_bytes


def held(saver):
    """Count anew, from what is there, what an account should have."""
    total = saver._encoder.pool_bytes
    for saved in list(saver._alive):
        if saved.is_kept and saved.charge is not None:
            alias = next(iter(saved.aliases.values()))
            total += alias.untyped_storage().nbytes()
        if saved.decoded is not None:
            total += saved.decoded.nbytes
        if saved.ahead is not None:
            total += saved.ahead.buffer.nbytes
    return total


def check_resident(saver):
    """Check what is resident for it: storages, and the pages of codes.

    Beside each code a part of a page may be free.
    """
    stats = saver._encoder._pool.stats()
    unused = stats.reserved_bytes - stats.current_bytes
    slack = 4096 * (1 + stats.allocation_count)
    assert saver.current_bytes + unused <= saver.limit_bytes + slack


class Save(torch.autograd.Function):
    """Saves tensors; what backward is given goes into a list."""

    @staticmethod
    def forward(ctx, x, found, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.found = found
        ctx.count = len(tensors)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.found.extend(ctx.saved_tensors)
        return (gradient, None, *(None for _ in range(ctx.count)))


def save(*tensors):
    """Have autograd save tensors; the result's backward gives them back."""
    found = []
    x = torch.zeros(1, requires_grad=True)
    return Save.apply(x, found, *tensors), found


def fill(nbytes, saver=None):
    """Save zeros that make a full context pack what it has."""
    return save(torch.zeros(nbytes, dtype=torch.uint8))


# The bits.


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [0.35, 0.6])
def test_training_has_the_same_bits_from_a_file(name, share, tmp_path):
    limit = int(share * all_bytes(name))
    saver = mt.saved_tensors(limit, ["zvc"], spill_to=tmp_path, spill_limit="64MiB")
    seen = []

    def watch():
        assert held(saver) == saver.current_bytes
        check_resident(saver)
        seen.append(saver.current_bytes)

    same_bits(train(name, saver, watch=watch), train(name, None))
    report = saver.memory_report()
    assert max(seen) <= saver.peak_bytes <= limit
    if name != "lstm":  # of which a tensor is larger than the limit, and goes at once
        assert limit < 4 * saver.peak_bytes
    assert report.spilled_bytes > 0
    assert report.read_bytes == report.spilled_bytes
    assert saver.current_bytes == saver._encoder.pool_bytes == 0
    check_resident(saver)
    saver.trim()
    assert saver.trim() == saver._encoder._pool.stats().reserved_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_zeros_are_enough_for_a_network_of_relus():
    limit = int(0.8 * all_bytes("resnet"))
    saver = mt.saved_tensors(limit)
    same_bits(train("resnet", saver), train("resnet", None))
    report = saver.memory_report()
    assert [each.codec for each in report.codings] == ["zvc"]
    assert report.codings[0].ratio > 1.5
    assert saver.peak_bytes <= limit
    assert saver.current_bytes == 0


@pytest.mark.parametrize("codec", ["csr", "rle", "planes_zstd"])
def test_other_lossless_codecs_have_the_same_bits(codec, tmp_path):
    saver = mt.saved_tensors("700KiB", [codec], spill_to=tmp_path)
    same_bits(train("resnet", saver), train("resnet", None))
    assert saver.peak_bytes <= saver.limit_bytes


def test_two_threads_of_kernels_have_the_same_bits(tmp_path):
    saver = mt.saved_tensors("500KiB", spill_to=tmp_path)
    same_bits(train("unet", saver, threads=2), train("unet", None, threads=2))
    torch.set_num_threads(1)


# Of a number x in the codec's normal range: |error| <= bound * |x|.
@pytest.mark.parametrize(("codec", "bound"), [("fp16", 2**-11), ("fp8", 2**-4)])
def test_what_rounds_keeps_its_bound(codec, bound):
    values = torch.empty(64 * 1024).uniform_(0.1, 8)
    with mt.saved_tensors("200KiB", [codec]) as saver:
        out, found = save(values.clone())
    (entry,) = saver.memory_report().codings
    assert entry.codec == codec
    assert entry.used_bytes == values.nbytes * {"fp16": 16, "fp8": 8}[codec] // 32
    out.backward()
    error = (found[0] - values).abs() / values
    assert 0 < error.max() <= bound


def test_a_lossless_codec_goes_first_and_only_float32_is_rounded():
    sparse = torch.relu(torch.randn(64 * KIB) - 1)
    dense, double = torch.randn(64 * KIB), torch.randn(32 * KIB, dtype=torch.float64)
    with mt.saved_tensors("700KiB", ["zvc", "fp8"]) as saver:
        outs = [save(each.clone()) for each in (sparse, dense, double)]
    codecs = {each.codec: each.tensors for each in saver.memory_report().codings}
    assert codecs == {"zvc": 1, "fp8": 1}
    for (out, found), value in zip(outs, (sparse, dense, double), strict=True):
        out.backward()
        assert torch.equal(found[0], value) == (value is not dense)


def test_pages_of_codes_make_room_for_what_is_kept():
    values = [torch.relu(torch.randn(64 * KIB)) for _ in range(16)]  # 4 MiB together
    saver = mt.saved_tensors("3MiB")
    for _ in range(3):
        with saver:
            outs = []
            for each in values:
                outs.append(save(each.clone()))
                check_resident(saver)
        for out, _ in outs[::-1]:
            out.backward()
        del outs, out
        assert saver.memory_report().codings
        assert saver._encoder.free_bytes() > 0  # for the next pass
    with saver:
        outs = [save(each.clone()) for each in values[:2]]
    assert saver._encoder.free_bytes() <= saver._account.limit - 2 * values[0].nbytes
    del outs
    assert saver.trim() > 0 == saver._encoder._pool.stats().reserved_bytes


def test_what_a_lossless_codec_leaves_too_large_is_rounded_after_all():
    values = [torch.relu(torch.randn(64 * KIB)) for _ in range(4)]  # 1 MiB together
    found = []
    for limit, codecs in ((BIG, []), ("700KiB", {"zvc": 4}), ("400KiB", {"fp8": 2})):
        saver = mt.saved_tensors(limit, ["zvc", "fp8"])
        for _ in range(2):  # in the second pass it is known
            with saver:
                outs = [save(each.clone()) for each in values]
            for out, _ in outs:
                out.backward()
            report = saver.memory_report()
            counts = {each.codec: each.tensors for each in report.codings}
            assert all(counts[codec] >= least for codec, least in dict(codecs).items())
        found.append([each[0] for _, each in outs])
        assert saver.peak_bytes <= saver.limit_bytes
        assert saver.current_bytes in (0, 4 * values[0].nbytes)
    for each, exact, rounded in zip(*found, strict=True):
        assert torch.equal(each, exact)
        assert (rounded - each).abs().max() <= 2**-4 * each.max()


def test_training_with_rounding_stays_close():
    limit = int(0.62 * all_bytes("resnet"))
    plain = train("resnet", None, steps=1)
    for codec, bound in (("fp16", 2**-10), ("fp8", 2**-3)):
        saver = mt.saved_tensors(limit, ["zvc", codec])
        losses, gradients = train("resnet", saver, steps=1)
        assert saver.peak_bytes <= limit
        assert losses == plain[0]  # forward reads nothing that was saved
        error = sum(
            (a - b).square().sum() for a, b in zip(gradients, plain[1], strict=True)
        )
        whole = sum(each.square().sum() for each in plain[1])
        assert 0 < error.sqrt() <= bound * whole.sqrt()


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int8, torch.uint8, torch.complex64, torch.complex128),
]


@st.composite
def tensors(draw):
    """A view of a storage: any strides, offsets, conjugates, overlaps."""
    dtype = draw(st.sampled_from(DTYPES))
    sizes = draw(st.lists(st.integers(0, 12), max_size=4))
    strides = [draw(st.integers(0, 40)) for _ in sizes]
    offset = draw(st.integers(0, 200))
    extent = sum(max(n - 1, 0) * step for n, step in zip(sizes, strides, strict=True))
    count = offset + extent + 1 + draw(st.integers(0, 3000))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    data = random.integers(0, 256, count * 16, np.uint8)
    data[random.random(data.size // 4).repeat(4) < draw(st.sampled_from([0, 0.9]))] = 0
    if dtype == torch.bool:
        data %= 2
    base = torch.from_numpy(data).clone().view(dtype)
    view = base.as_strided(sizes, strides, offset)
    if dtype.is_complex and draw(st.booleans()):
        view = view.conj()
        if draw(st.booleans()):
            view = view.imag  # a negative bit
    return view


def bits(tensor):
    plain = tensor.resolve_conj().resolve_neg()
    plain = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return plain.view(torch.uint8) if len(plain) else plain


@settings(max_examples=300, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    views=st.lists(tensors(), min_size=1, max_size=4),
    codec=st.sampled_from(["zvc", "csr", "rle", None]),
    data=st.data(),
)
def test_any_tensor_comes_back_as_it_was(views, codec, data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    codecs = [] if codec is None else [codec]
    total = sum(each.untyped_storage().nbytes() for each in views)
    limit = data.draw(st.integers(max(total // 3, 20 * KIB), total + 64 * KIB))
    before = [bits(each).clone() for each in views]
    saver = mt.saved_tensors(limit, codecs, spill_to=folder, spill_limit="1MiB")
    with saver:
        outs = [save(*views), save(*views[::-1])]
        del views[1:]  # and keep one
        while saver._pack_one():
            assert held(saver) == saver.current_bytes <= limit
    for (out, found), order in zip(outs, (1, -1), strict=True):
        out.backward()
        for tensor, old in zip(found, before[::order], strict=True):
            assert torch.equal(bits(tensor), old)
    assert saver.peak_bytes <= limit
    del outs, out, found, tensor
    assert saver.current_bytes == saver._encoder.pool_bytes == 0


def packed(value, **options):
    """Save a tensor, pack it, and return what backward is given."""
    with mt.saved_tensors("1MiB", **options) as saver:
        out, found = save(value)
        while saver._pack_one():
            pass
    out.backward()
    return found[0], saver.memory_report()


def test_shapes_and_strides_come_back():
    base = torch.relu(torch.randn(200, 250))
    for view in (
        base.t(),
        base[3:90:3, ::2],
        base[70:90].expand(2, 20, 250),
        base[5:99, 1:],
    ):
        found, report = packed(view)
        assert torch.equal(found, view)
        assert found.stride() == view.stride()
        assert found.data_ptr() != view.data_ptr()
        assert found.data_ptr() % 64 == view.data_ptr() % 64
        assert len(report.codings) == 1


def test_only_the_bytes_that_are_needed_are_packed():
    base = torch.relu(torch.randn(100, 1000))
    _, report = packed(base[50:52])
    assert report.codings[0].tensor_bytes == align_up(8000)
    assert report.saved_bytes == base.nbytes  # which is what is held until then


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(40).to_sparse(),
        lambda: torch.eye(40).to_sparse_csr(),
        lambda: torch.zeros(0, 5),
        lambda: torch.zeros(5, device="meta"),
        lambda: torch.quantize_per_tensor(torch.rand(2000), 0.1, 0, torch.quint8),
    ],
    ids=["sparse", "sparse_rows", "empty", "meta", "quantized"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_plain_is_left_as_it_is(make):
    value = make()
    found, report = packed(value)
    assert type(found) is type(value)
    assert found.layout == value.layout
    assert found.shape == value.shape
    assert report.codings == ()


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_left_as_they_are():
    gradients = []
    for hooks in (None, mt.saved_tensors("64KiB")):
        x = torch.full((3, 500), 0.5).requires_grad_()
        with hooks or torch.enable_grad():
            nested = torch.nested.as_nested_tensor([x[0], x[1], x[2]])
            out = torch.nn.functional.relu(nested * nested)
        out.to_padded_tensor(0).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert hooks.memory_report().saved_bytes > 0


def test_bytes_of_sparse_tensors_count():
    value = torch.eye(40).to_sparse()
    with mt.saved_tensors("1KiB") as saver:
        out, _ = save(value)
        assert saver.current_bytes == 40 * (2 * 8 + 4)
        with pytest.raises(ResourceExhaustedError):
            save(torch.eye(70).to_sparse())
    with pytest.raises(RuntimeError, match="is gone"):
        out.backward()
    assert saver.current_bytes == 0


class Named(torch.Tensor):
    """A subclass."""


def test_a_subclass_stays_one():
    found, report = packed(torch.zeros(5000).as_subclass(Named))
    assert type(found) is Named
    assert report.codings == ()
    assert report.saved_bytes == 20_000


# What costs nothing.


def test_a_storage_that_several_nodes_save_is_packed_once():
    x = torch.randn(64, 64, 16, requires_grad=True)
    with mt.saved_tensors(BIG) as saver:
        y = x.relu()  # saves its result
        z = y * y
        out = z.sum() + y[3:].exp().sum() + y.view(-1).square().sum()
    report = saver.memory_report()
    exp = y[3:].nbytes
    assert report.saved_bytes == y.nbytes + exp
    del z
    while saver._pack_one():
        pass
    assert saver.memory_report().codings[0].tensor_bytes == y.nbytes
    out.backward()
    expected = (2 * x + 2 * x) * (x > 0)
    expected[3:] += x[3:].relu().exp() * (x[3:] > 0)
    torch.testing.assert_close(x.grad, expected.detach())


def test_a_copy_is_shared_by_those_that_wait_for_it_if_there_is_room(tmp_path):
    y = torch.randn(64 * KIB)
    with mt.saved_tensors("1MiB", [], spill_to=tmp_path) as saver:
        first, second = save(y), save(y.view(256, 256))
        while saver._pack_one():
            pass
        assert saver.current_bytes == 0
    first[0].backward()
    assert saver.current_bytes == y.nbytes
    assert saver.memory_report().by_kind["decoded or read ahead"] == y.nbytes
    second[0].backward()
    assert saver.memory_report().read_bytes == y.nbytes
    assert first[1][0].data_ptr() == second[1][0].data_ptr() != y.data_ptr()
    assert saver.current_bytes == 0


def test_parameters_their_views_and_buffers_cost_nothing():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64)
    ).eval()
    model[2].requires_grad_(False)
    x = torch.randn(3, 64, requires_grad=True)
    with mt.saved_tensors(BIG) as saver:
        out = model(x)
    report = saver.memory_report()
    assert report.saved_bytes <= 3 * 64 * 4 + 128  # the first layer's result
    assert report.shared >= 5
    out.sum().backward()


def test_the_input_of_a_module_counts_when_nobody_else_holds_it():
    layer = torch.nn.Linear(256, 4)
    x = torch.randn(128, 256)
    with mt.saved_tensors("256KiB") as saver:
        out = layer(x)
        assert saver.current_bytes == 0
        rows = x[:64]
        del x
        more = layer(torch.randn(1, 256))
        assert saver.current_bytes == 0  # a view holds it
        del rows
        save(torch.zeros(8))
        assert saver.current_bytes >= 128 * 256 * 4
    del out, more
    assert saver.current_bytes == 0


# Changes in place.


def modified(act):
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as e:
        act()
    return str(e.value)


@pytest.mark.parametrize("pack", [False, True])
def test_a_change_in_place_is_an_error_as_without_hooks(pack):
    x = torch.randn(4000, requires_grad=True)
    plain = x.exp()
    out = plain.sum()
    plain.detach().zero_()
    said = modified(out.backward)
    with mt.saved_tensors(BIG) as saver:
        y = x.relu()
        out = y.sum()
        while pack and saver._pack_one():
            pass
        assert bool(saver.memory_report().codings) == pack
    y.detach().zero_()
    ours = modified(out.backward)
    for words in ("[torch.FloatTensor [4000]]", "is at version 1; expected version 0"):
        assert words in said
        assert words in ours
    assert x.grad is None


def test_a_change_between_saving_and_packing_is_an_error():
    x = torch.randn(4000, requires_grad=True)
    with mt.saved_tensors(BIG) as saver:
        y = x.relu()
        y.detach().add_(1)
        assert saver._pack_one()
        assert saver.current_bytes == 0  # nobody can read it any more
    modified(y.sum().backward)


def test_a_parameter_that_an_optimizer_changed_is_an_error():
    layer = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    with mt.saved_tensors(BIG):
        out = layer(x).sum()
    torch.optim.SGD(layer.parameters(), 0.1)
    with torch.no_grad():
        layer.weight.add_(1)
    modified(out.backward)


def test_saved_before_and_after_a_change_are_two():
    value = torch.relu(torch.randn(4000))
    with mt.saved_tensors(BIG) as saver:
        first, _ = save(value)
        value.add_(1)
        second, found = save(value)
        assert saver.current_bytes == value.nbytes
    modified(first.backward)
    second.backward()
    assert torch.equal(found[0], value)


def test_a_tensor_with_another_counter_is_not_taken_for_one_that_was_changed():
    value = torch.relu(torch.randn(4000))
    with mt.saved_tensors(BIG) as saver:
        first, _ = save(value)
        value.add_(1)
        assert saver._pack_one()  # which finds the change
        second, found = save(value.data)  # PyTorch gives it a counter of its own
    modified(first.backward)
    second.backward()
    assert torch.equal(found[0], value)


def test_an_empty_view_holds_no_storage():
    large = torch.randn(4000)
    with mt.saved_tensors("1KiB") as saver:
        out, found = save(large[:0], large.view(40, 100)[:, 3:3])
        weak = StorageWeakRef(large.untyped_storage())
        del large
        assert weak.expired()
    out.backward()
    assert [each.shape for each in found] == [(0,), (40, 0)]
    assert saver.peak_bytes == 0


def test_what_was_packed_is_as_it_was_saved_where_the_tensor_is_gone():
    value = torch.relu(torch.randn(4000))
    old, data = value.clone(), value.detach()
    with mt.saved_tensors(BIG) as saver:
        out, found = save(value)
        del value
        gc.collect()
        assert saver._pack_one()
    data.zero_()
    out.backward()
    assert torch.equal(found[0], old)


# The limit.


def test_too_much_is_an_error_where_it_is_saved_and_everything_is_released():
    saver = mt.saved_tensors("1MiB")
    x = torch.randn(100 * KIB, requires_grad=True)
    with saver:
        y = x.exp()
        z = y.exp()
        with pytest.raises(ResourceExhaustedError) as caught:
            z.exp()
        assert saver.current_bytes == 0
    error = caught.value
    assert error.requested_bytes == x.nbytes
    assert error.in_use_bytes == 2 * x.nbytes
    assert error.limit_bytes == MIB
    assert error.owners == {"kept as they are": 2 * x.nbytes}
    text = str(error)
    for words in ("[102400] of torch.float32", "spill_to=<a folder>", "that rounds"):
        assert words in text
    with pytest.raises(RuntimeError, match="is gone: all were released"):
        z.sum().backward()
    with saver:  # and it can be used again
        x.exp().sum().backward()
    assert x.grad is not None
    assert saver.current_bytes == 0


def test_a_full_file_is_an_error_with_what_to_try(tmp_path):
    options = {"spill_to": tmp_path, "spill_limit": "1MiB"}
    x = torch.randn(100 * KIB, requires_grad=True)
    with mt.saved_tensors("600KiB", [], **options) as saver:
        y = x.exp().exp().exp()
        with pytest.raises(ResourceExhaustedError, match="spill_limit above 1"):
            y.exp()
    assert saver.current_bytes == 0


def test_no_more_is_held_than_one_tensor_needs(tmp_path):
    """A limit of one code is enough where everything else goes to the file."""
    x = torch.relu(torch.randn(256 * KIB) - 0.5).requires_grad_()
    with mt.saved_tensors("700KiB", spill_to=tmp_path) as saver:
        y = x.relu().sin().relu().sin().relu()
    assert 0 < saver.peak_bytes <= 700 * KIB < x.nbytes
    y.sum().backward()
    other = x.detach().clone().requires_grad_()
    other.relu().sin().relu().sin().relu().sum().backward()
    assert torch.equal(x.grad, other.grad)


def test_a_full_disk_is_an_error_at_entry(tmp_path):
    saver = mt.saved_tensors("1MiB", spill_to=tmp_path, spill_limit="1000TiB")
    with pytest.raises(OSError, match="cannot be made"), saver:
        pass
    with pytest.raises(OSError, match="cannot be made"):  # hooks are not on
        saver.__enter__()
    out = torch.ones(3, requires_grad=True).exp().sum()
    out.backward()
    assert saver.memory_report().tensors == 0


def test_what_is_held_longest_goes_first_once_that_is_known(tmp_path):
    saver = mt.saved_tensors("231KiB", [], spill_to=tmp_path)
    spilled = []
    for _ in range(3):
        with saver:
            first = save(torch.ones(15 * KIB))  # 60 KiB, read last
            small = [save(torch.ones(KIB // 4)) for _ in range(10)]
            large = [save(torch.ones(25 * KIB)) for _ in range(2)]  # 100 KiB each
        for out, _ in (*large[::-1], *small[::-1], first):
            out.backward()
        spilled.append(saver.memory_report().spilled_bytes // KIB)
        del first, small, large, out
    assert spilled == [100, 60, 60]
    assert saver.current_bytes == 0


def test_from_the_second_pass_on_the_order_of_reading_is_known(tmp_path):
    limit = int(0.35 * all_bytes("unet"))
    saver = mt.saved_tensors(limit, [], spill_to=tmp_path)
    train("unet", saver)
    report = saver.memory_report()
    assert report.read_ahead_bytes > 0.3 * report.read_bytes
    again = mt.saved_tensors(limit, [], spill_to=tmp_path)
    train("unet", again)
    assert again.memory_report() == report  # no clock decides anything


# Graphs.


def test_a_graph_that_is_dropped_gives_everything_back(tmp_path):
    for keep in (False, True):
        with mt.saved_tensors("300KiB", spill_to=tmp_path) as saver:
            x = torch.relu(torch.randn(32 * KIB)).requires_grad_()
            y = x.relu().exp().relu().exp().relu()
            if keep:
                y.sum().backward(retain_graph=True)
            assert saver.current_bytes > 0
            assert saver.memory_report().spilled_bytes > 0
            file = saver._store
        del x, y
        assert saver.current_bytes == saver._encoder.pool_bytes == 0
        assert len(saver._alive) == 0
        assert file.in_use == 0


@pytest.mark.parametrize("limit", ["200KiB", "2MiB"])
def test_several_backward_passes(limit, tmp_path):
    gradients = []
    for hooks in (None, mt.saved_tensors(limit, spill_to=tmp_path)):
        torch.manual_seed(0)
        x = torch.randn(30_000).requires_grad_()
        with hooks or torch.enable_grad():
            y = (x.relu().exp().relu() * x.relu()).sum()
            z = (x.sigmoid() * x.sigmoid().exp()).sum()
        y.backward(retain_graph=True)
        z.backward()
        y.backward(retain_graph=True)
        y.backward()
        gradients.append(x.grad)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
    assert torch.equal(*gradients)
    assert hooks.current_bytes == 0


@pytest.mark.parametrize("limit", ["200KiB", "2MiB"])
def test_gradients_of_gradients(limit, tmp_path):
    found = []
    for hooks in (None, mt.saved_tensors(limit, spill_to=tmp_path)):
        torch.manual_seed(0)
        x = torch.randn(30_000).requires_grad_()
        with hooks or torch.enable_grad():
            y = (x.tanh().exp() * x.relu()).sum()
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((first.detach().clone(), second))
        del first, y
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert hooks.current_bytes == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_inside(reentrant, tmp_path):
    from torch.utils.checkpoint import checkpoint

    found = []
    for hooks in (None, mt.saved_tensors("200KiB", spill_to=tmp_path)):
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(4))
        x = torch.randn(200, 128).requires_grad_()
        with hooks or torch.enable_grad():
            y = x
            for each in layers:
                y = checkpoint(
                    lambda v, each=each: each(v).relu().exp().tanh(),
                    y,
                    use_reentrant=reentrant,
                )
            y.sum().backward()
        found.append([x.grad, *(each.grad for each in layers.parameters())])
        del y
    assert all(map(torch.equal, *found))
    assert hooks.current_bytes == 0
    assert hooks.peak_bytes <= hooks.limit_bytes


def test_nested_contexts_and_no_grad():
    x = torch.randn(5000, requires_grad=True)
    with mt.saved_tensors(BIG) as outer:
        y = x.exp()
        before = outer.current_bytes
        with mt.saved_tensors(BIG) as inner:
            y = y.exp()
            with torch.no_grad():
                x.exp().exp()
        assert inner.current_bytes == x.nbytes
        assert outer.current_bytes == before == x.nbytes
        with outer, outer:
            y = y.exp()
        y = y.exp()
        assert outer.current_bytes == 3 * x.nbytes
    plain = x.detach().clone().requires_grad_()
    plain.exp().exp().exp().exp().sum().backward()
    y.sum().backward()
    assert torch.equal(x.grad, plain.grad)
    assert outer.current_bytes == inner.current_bytes == 0
    assert inner.memory_report().tensors == 1


def test_other_threads_read_and_other_threads_save(tmp_path):
    saver = mt.saved_tensors("300KiB", spill_to=tmp_path, spill_limit="8MiB")
    failures = []

    def work(seed):
        try:
            random = torch.Generator().manual_seed(seed)
            for _ in range(5):
                x = torch.randn(5000, generator=random).requires_grad_()
                with saver:
                    y = x.relu().exp().relu().tanh().sum()
                thread = threading.Thread(target=y.backward)
                thread.start()
                thread.join()
                other = x.detach().clone().requires_grad_()
                other.relu().exp().relu().tanh().sum().backward()
                assert torch.equal(x.grad, other.grad)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert saver.current_bytes == 0
    assert saver.peak_bytes <= saver.limit_bytes


def test_what_a_longer_pass_saved_leaves_in_a_shorter_one(tmp_path):
    """A pass of three tensors that is as the last one, with others held from before."""
    saver = mt.saved_tensors("300KiB", spill_to=tmp_path, spill_limit="8MiB")

    def forward(elements, count):
        leaves = [torch.randn(elements, requires_grad=True) for _ in range(count)]
        with saver:
            return leaves, [leaf.exp().sum() for leaf in leaves]

    held = [forward(10_000, 6)]
    for _ in range(8):
        leaves, (first, *others) = forward(2000, 3)
        first.backward()
        held.append((leaves[1:], others))
    del first, others
    for leaves, sums in held:
        while sums:
            sums.pop().backward()
        assert all(torch.equal(leaf.grad, leaf.detach().exp()) for leaf in leaves)
    assert saver.current_bytes == 0
    assert saver.peak_bytes <= saver.limit_bytes


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_in_forward_or_backward_leaves_nothing(error, tmp_path):
    def fail(*_):
        raise error

    x = torch.randn(30_000).requires_grad_()
    saver = mt.saved_tensors("200KiB", spill_to=tmp_path)

    def forward(stop):
        with saver:
            y = x.relu().exp()
            if stop:
                fail()
            y.register_hook(fail)
            return y.relu().exp().sum()

    with pytest.raises(error):
        forward(True)
    assert saver.current_bytes == 0
    out = forward(False)
    with pytest.raises(error):
        out.backward()
    del out
    assert saver.current_bytes == 0
    assert saver._entered == []


@pytest.mark.parametrize("start", range(8))
def test_an_interrupt_at_any_line_leaves_nothing(start, tmp_path):
    """Each 40th line that runs here, of what packs and reads; accounts say why not."""
    here = Path(mt.__file__).parent / "saved"
    names = ("_saved_tensors.py", "_saved_bytes.py", "_codes.py", "_passes.py")
    files = {str(here / name) for name in names}
    x = torch.randn(40_000).requires_grad_()

    def step(saver):
        with saver:
            y = x.relu().exp().relu().sigmoid()
        (y * y).sum().backward()

    def interrupted(saver, at):
        """Whether the step had so many lines."""
        left = at

        def watch(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename not in files or "__" in frame.f_code.co_name:
                return None
            left -= event == "line"
            if left == 0:
                raise KeyboardInterrupt
            return watch

        try:
            with traced(watch):
                step(saver)
        except KeyboardInterrupt:
            return True
        return False

    saver, at = mt.saved_tensors("250KiB", spill_to=tmp_path), 1 + 5 * start
    while interrupted(saver, at):
        assert saver.current_bytes == saver._encoder.pool_bytes == 0
        torch.nn.ReLU()(x.detach())  # a module's call removes a hook that was left
        assert len(module._global_forward_pre_hooks) == 0
        at += 40
    assert at > 1000
    x.grad = None
    step(saver)
    other = x.detach().clone().requires_grad_()
    y = other.relu().exp().relu().sigmoid()
    (y * y).sum().backward()
    assert torch.equal(x.grad, other.grad)
    assert saver.peak_bytes <= saver.limit_bytes


def test_after_an_exit_that_was_interrupted_modules_are_heard_again():
    saver = mt.saved_tensors("1MiB")
    linear, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    with saver:
        handle = saver._hook
    saver._hook = handle  # as an interrupt behind its removal leaves it
    with saver:
        linear(x)
        assert linear in saver._modules
    assert len(module._global_forward_pre_hooks) == 0


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_and_autocast(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)
    )
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(200, 64)
    for function, dtype in ((compiled, None), (model, torch.bfloat16)):
        found = []
        for hooks in (None, mt.saved_tensors("300KiB", spill_to=tmp_path)):
            model.zero_grad()
            cast = torch.autocast("cpu", dtype, enabled=dtype is not None)
            with hooks or torch.enable_grad(), cast:
                out = function(x).relu()
            out.sum().backward()
            found.append([each.grad.clone() for each in model.parameters()])
        assert all(map(torch.equal, *found))
        assert 0 < hooks.peak_bytes <= hooks.limit_bytes
        del out
        assert hooks.current_bytes == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_has_its_own_and_not_its_parents_file(tmp_path):
    x = torch.randn(30_000).requires_grad_()
    saver = mt.saved_tensors("200KiB", spill_to=tmp_path)
    with saver:
        y = x.relu().exp().relu().exp().sum()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(RuntimeError, match="forked after tensors had left"):
                    y.backward()
                z = x.detach().requires_grad_()
                z.relu().exp().relu().exp().sum().backward()
                other = x.detach().requires_grad_()
                with saver.__class__(BIG):
                    other.relu().exp().relu().exp().sum().backward()
                code = 0 if torch.equal(z.grad, other.grad) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    y.backward()
    other = x.detach().clone().requires_grad_()
    other.relu().exp().relu().exp().sum().backward()
    assert torch.equal(x.grad, other.grad)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((50,), float(index))


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_loader_inside():
    layer = torch.nn.Linear(50, 50)
    with mt.saved_tensors("1MiB") as saver:
        loader = torch.utils.data.DataLoader(Rows(), 4, num_workers=1)
        for x in loader:
            layer(x).relu().sum().backward()
    assert saver.current_bytes == 0


def test_a_copy_has_the_same_settings_and_holds_nothing(tmp_path):
    saver = mt.saved_tensors("1MiB", ["rle"], spill_to=tmp_path, spill_limit="2MiB")
    x = torch.ones(5000, requires_grad=True)
    with saver:
        y = x.exp()
    other = copy.deepcopy(saver)
    assert other.limit_bytes == MIB
    assert other.codecs == ("rle",)
    assert (other.folder, other.file_bytes) == (str(tmp_path), 2 * MIB)
    assert other.current_bytes == 0
    assert saver.current_bytes == y.nbytes
    assert repr(saver) == "<saved_tensors: 19.53 KiB of 1.00 MiB in use>"


# Words.


def test_the_report_says_what_was_where(tmp_path):
    sparse, dense = torch.relu(torch.randn(64 * KIB)), torch.randn(64 * KIB)
    saver = mt.saved_tensors("260KiB", spill_to=tmp_path, spill_limit="1MiB")
    with saver:
        outs = [save(each.clone()) for each in (sparse, dense, dense)]
    for out, _ in outs:
        out.backward()
    report = saver.memory_report()
    assert report.saved_bytes == 3 * dense.nbytes
    assert report.peak_bytes <= report.limit_bytes == 260 * KIB
    assert report.tensors == 3
    lines = str(report).splitlines()
    assert lines[0] == "Saved tensors"
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == [
        *("limit", "peak", "held", "saved", "zvc", "spilled", "read")
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("12 apples",), ValueError, "cannot read"),
        ((0,), ValueError, "at least a byte"),
        ((1.5,), TypeError, "a size is"),
        (("1MiB", "zvc"), TypeError, "a list of names"),
        (("1MiB", ["zvcc"]), ValueError, "did you mean 'zvc'"),
        (("1MiB", ["zvc", "zvc"]), ValueError, "named twice"),
        (("1MiB", ["mask"]), ValueError, "keeps nothing but signs"),
    ],
)
def test_arguments_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        mt.saved_tensors(*arguments)


def test_arguments_of_files_are_checked():
    with pytest.raises(ValueError, match="give 'host' or a folder"):
        mt.saved_tensors("1MiB", spill_limit="1MiB")
    with pytest.raises(ValueError, match="spill_to is empty"):
        mt.saved_tensors("1MiB", spill_to="")
    with pytest.raises(TypeError, match="a folder's path or None"):
        mt.saved_tensors("1MiB", spill_to=7)
    with pytest.warns(RuntimeWarning, match="limit=512 is 512 bytes"):
        mt.saved_tensors(512)
    assert mt.saved_tensors("1MiB", spill_to="host").file_bytes == 0
    half, all_of_it = (mt.saved_tensors(each).limit_bytes for each in ("50%", "100%"))
    assert half == all_of_it // 2
