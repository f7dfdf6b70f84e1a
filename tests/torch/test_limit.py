"""All CPU tensors of PyTorch under a limit: counted, refused, named, and given back."""

from __future__ import annotations

import copy
import gc
import pickle
import signal
import threading

import numpy as np
import pytest
import torch
import torch.cuda._memory_viz as viz
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import load
from torch import nn
from torch_bits import bits, bytes_left, inside, seed

import memcfg.torch as mt
from memcfg import memory
from memcfg.errors import ResourceExhaustedError

KIB, MIB = 2**10, 2**20
LIMIT = 64 * MIB


def current() -> int:
    return mt.get_memory_info()["current"]


@pytest.fixture
def limit():
    """A limit, and nothing in the pool before and after."""
    assert bytes_left() == 0
    mt.limit_cpu(LIMIT)
    mt.reset_memory_stats()
    yield LIMIT
    mt.limit_cpu(None)
    mt.cpu_pool().check()
    assert bytes_left() == 0


def network() -> nn.Module:
    layers = nn.Linear(64, 128), nn.ReLU(), nn.Sequential(nn.Linear(128, 8))
    return nn.Sequential(*layers)


def step(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


class TestBytes:
    def test_each_tensor_counts_rounded_up_and_is_aligned(self, limit):
        tensors, sizes = [], [1, 63, 64, 65, 4000, 65_536, 65_537, 5 * MIB]
        for size in sizes:
            tensors.append(torch.empty(size, dtype=torch.uint8))
            assert tensors[-1].data_ptr() % 64 == 0
        assert current() == sum(-(-size // 64) * 64 for size in sizes)
        stats = mt.cpu_pool().stats()
        assert stats.requested_bytes == sum(sizes)
        tensors.clear()
        assert current() == 0
        assert mt.get_memory_info()["peak"] == stats.current_bytes
        mt.reset_memory_stats()
        assert mt.get_memory_info() == {"current": 0, "peak": 0}

    def test_no_bytes_are_no_memory(self, limit):
        before = mt.cpu_pool().stats().allocation_count
        assert torch.empty(0).data_ptr() == 0
        assert torch.empty(3, 0, 5).sum().item() == 0
        assert mt.cpu_pool().stats().allocation_count == before + 1  # of the sum

    def test_views_share_and_the_last_one_frees(self, limit):
        x = torch.zeros(1000)
        y = x.view(10, 100)[3]
        array = x.numpy()
        assert current() == 4032
        del x, y
        assert current() == 4032
        array[:] = 3
        del array
        assert current() == 0

    def test_memory_of_others_is_not_counted(self, limit):
        a = torch.from_numpy(np.ones(1000, dtype=np.float32))
        assert current() == 0
        b = a.clone()
        assert current() == 4032
        b.share_memory_()  # it moves there
        assert current() == 0

    def test_tensors_of_before_and_after_go_back_where_they_came_from(self, limit):
        mt.limit_cpu(None)
        before = torch.ones(100_000)
        mt.limit_cpu(LIMIT)
        here = torch.ones(100_000)
        assert current() == 400_000
        del before
        mt.limit_cpu(None)
        after = torch.ones(100_000)
        assert current() == 400_000
        assert torch.equal(here, after)
        del here
        assert current() == 0

    def test_a_tensor_that_grows_stays_where_it_is_from(self, limit):
        here = torch.ones(1000)
        here.resize_(2000)
        assert current() == 8000
        mt.limit_cpu(None)
        here.resize_(3000)  # the storage's own allocator: off, it passes on
        assert current() == 0
        mt.limit_cpu(LIMIT)
        here.resize_(4000)
        assert current() == 16_000
        assert here[:1000].sum() == 1000

    @pytest.mark.skipif(
        not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN"
    )
    def test_onednns_memory_is_freed_by_whatever_is_registered(self, limit):
        mt.limit_cpu(None)
        before = torch.ones(64, 64).to_mkldnn()
        mt.limit_cpu(LIMIT)
        here = torch.ones(64, 64).to_mkldnn()
        assert current() > 0
        del before
        mt.limit_cpu(None)
        after = torch.ones(64, 64).to_mkldnn()
        del here, after
        assert current() == 0

    def test_what_no_tensor_has_goes_back_to_the_system(self, limit):
        x = torch.ones(32 * MIB, dtype=torch.uint8)
        pool = mt.cpu_pool()
        assert pool.stats().reserved_bytes >= 32 * MIB
        assert mt.trim() == pool.stats().peak_reserved_bytes - 32 * MIB
        del x
        assert pool.stats().reserved_bytes >= 32 * MIB  # kept for the next
        kept = pool.stats().reserved_bytes
        assert mt.trim("8MiB") == kept - 8 * MIB
        assert mt.trim() == 8 * MIB
        assert pool.stats().reserved_bytes == 0

    @settings(max_examples=40)
    @given(st.data())
    def test_any_series_of_tensors_is_counted(self, data):
        """The oracle is a sum over those that live."""
        ceiling = data.draw(st.integers(1, 64)) * 64 * KIB
        mt.limit_cpu(ceiling)
        live: list[torch.Tensor] = []
        held = 0
        try:
            for _ in range(data.draw(st.integers(1, 30))):
                if live and data.draw(st.booleans()):
                    place = data.draw(st.integers(0, len(live) - 1))
                    held -= -(-live[place].numel() // 64) * 64
                    del live[place]
                    continue
                size = data.draw(st.integers(1, 600_000))
                rounded = -(-size // 64) * 64
                if held + rounded > ceiling // 64 * 64:
                    with pytest.raises(ResourceExhaustedError) as caught:
                        torch.empty(size, dtype=torch.uint8)
                    assert caught.value.requested_bytes == size
                    assert caught.value.in_use_bytes == held
                    del caught
                else:
                    live.append(torch.empty(size, dtype=torch.uint8))
                    held += rounded
                assert current() == held
            mt.cpu_pool().check()
        finally:
            live.clear()
            mt.limit_cpu(None)
        assert bytes_left() == 0


class TestLimit:
    def test_what_does_not_fit_is_told_with_numbers_and_holders(self, limit):
        with mt.tag("mine"):
            x = torch.empty(MIB)
        with pytest.raises(ResourceExhaustedError) as caught:
            torch.empty(16 * MIB)
        error = caught.value
        assert isinstance(error, mt.OutOfMemoryError)
        assert isinstance(error, torch.OutOfMemoryError)  # who knows only PyTorch
        assert isinstance(error, MemoryError)
        assert error.requested_bytes == 64 * MIB
        assert (error.in_use_bytes, error.limit_bytes) == (4 * MIB, LIMIT)
        assert error.largest_free_bytes == 60 * MIB
        assert error.owners == {"mine": 4 * MIB}
        assert error.device == "PyTorch's CPU"
        assert "limit 67108864 B (64.00 MiB)" in str(error)
        assert "memcfg.torch.limit_cpu" in error.hint
        assert "refusal" not in str(error)
        assert current() == x.nbytes
        other = pickle.loads(pickle.dumps(error))
        assert str(other) == str(error)
        assert other.owners == error.owners

    def test_an_error_of_long_ago_has_its_text(self, limit):
        text = "A request does not fit.\nRequested 5 B. [memcfg refusal 999999]"
        assert str(mt.OutOfMemoryError(text)) == text

    def test_it_may_change_while_tensors_live(self, limit):
        x = torch.empty(10 * MIB, dtype=torch.uint8)
        assert mt.limit_cpu("32MiB") == LIMIT
        with pytest.raises(ResourceExhaustedError):
            torch.empty(30 * MIB, dtype=torch.uint8)
        with pytest.raises(ResourceExhaustedError, match="below the bytes in use"):
            mt.limit_cpu("8MiB")
        assert mt.cpu_pool().limit == 32 * MIB
        y = torch.empty(20 * MIB, dtype=torch.uint8)
        assert mt.limit_cpu("50%") == 32 * MIB
        assert mt.limit_cpu(None) > LIMIT
        assert mt.limit_cpu(None) is None
        assert current() == x.nbytes + y.nbytes

    @pytest.mark.parametrize(
        ("value", "kind"),
        [(0, ValueError), (-5, ValueError), ("much", ValueError), (True, TypeError)],
    )
    def test_what_is_no_limit_changes_nothing(self, limit, value, kind):
        with pytest.raises(kind, match="limit"):
            mt.limit_cpu(value)
        assert mt.cpu_pool().limit == LIMIT

    def test_a_few_bytes_are_warned_of(self, limit):
        with pytest.warns(RuntimeWarning, match="limit=640"):
            mt.limit_cpu(640)
        with pytest.raises(TypeError, match="tag_modules"):
            mt.limit_cpu(LIMIT, tag_modules=1)

    def test_a_loader_of_others_texts_gets_one_error(self, limit):
        """As `torch.utils.data` makes it again from its type and a text."""
        text = "Caught OutOfMemoryError in DataLoader worker process 0.\nTraceback"
        assert str(mt.OutOfMemoryError(text)) == text

    def test_helpers_that_look_for_a_batch_size_know_it(self, limit):
        errors = [_raised(lambda: torch.empty(32 * MIB))]
        x = torch.ones(2**16, requires_grad=True)
        with mt.saved_tensors("64KiB", []):
            errors.append(_raised(x.exp))  # which saves its output
        errors.append(pickle.loads(pickle.dumps(errors[0])))
        for error in errors:
            assert isinstance(error, mt.OutOfMemoryError)
            assert _accelerate_reduces(error)
            assert isinstance(error, torch.OutOfMemoryError)
        assert _lightning_reduces(errors[0])
        assert not _accelerate_reduces(RuntimeError("a shape does not fit"))

    def test_a_helper_halves_the_batch_until_it_fits(self, limit):
        sizes = []

        def train(rows):
            sizes.append(rows)
            model = torch.nn.Linear(256, 256)
            model(torch.ones(rows, 256)).square().mean().backward()

        rows = 2**17
        while True:  # as accelerate's find_executable_batch_size
            try:
                train(rows)
                break
            except Exception as error:
                if not _accelerate_reduces(error):
                    raise
                rows //= 2
        assert len(sizes) > 1
        assert rows >= 2**12


def _raised(run):
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def _accelerate_reduces(error):
    """Whether accelerate 1.15 tries a smaller batch (utils/memory.py)."""
    words = (" out of memory.", "DefaultCPUAllocator: can't allocate memory")
    found = isinstance(error, RuntimeError) and len(error.args) == 1
    return found and any(each in error.args[0] for each in words)


def _lightning_reduces(error):
    """Whether Lightning 2 does where there is no GPU (utilities/memory.py)."""
    words = "DefaultCPUAllocator: can't allocate memory"
    return isinstance(error, RuntimeError) and words in error.args[0]


class TestThreads:
    def test_tensors_pass_between_threads(self, limit):
        handed: list[torch.Tensor] = []
        failed: list[BaseException] = []

        def work(number):
            try:
                generator = torch.Generator().manual_seed(number)
                for _ in range(300):
                    size = int(torch.randint(1, 50_000, (), generator=generator))
                    x = torch.full((size,), number, dtype=torch.uint8)
                    handed.append(x)
                    if len(handed) > 20:
                        y = handed.pop(0)
                        assert y.min() == y.max()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failed == []
        assert current() == sum(-(-x.nbytes // 64) * 64 for x in handed)

    def test_an_error_in_a_backward_pass_of_another_thread(self, limit):
        caught = []

        def work():
            w = torch.ones(MIB, requires_grad=True)
            y = (w * 2).sum()
            mt.limit_cpu(current() + MIB)
            try:
                y.backward()
            except ResourceExhaustedError as error:
                caught.append(error.requested_bytes)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert caught == [4 * MIB]


class TestNames:
    def test_holders_are_modules_the_backward_pass_and_the_optimizer(self, limit):
        with mt.tag("weights"):
            model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with mt.tag("data"):
            x = torch.ones(32, 64)
        y = model(x)
        weights = sum(-(-p.nbytes // 64) * 64 for p in model.parameters())
        owners = mt.cpu_pool().owners()
        assert owners == {
            "weights": weights,
            "data": x.nbytes,
            "Sequential.1": 32 * 128 * 4,  # for its gradient; what it read is gone
            "Sequential.2.0": 32 * 8 * 4,
        }
        y.sum().backward()
        del y
        assert mt.cpu_pool().owners() == {
            "weights": weights,
            "data": x.nbytes,
            "backward": weights,
        }
        optimizer.step()
        assert mt.cpu_pool().owners()["optimizer SGD"] == weights

    def test_a_module_keeps_nothing_and_is_not_kept(self, limit):
        model = network()
        names = set(vars(model))
        model(torch.ones(2, 64))
        assert set(vars(model)) == names
        copied = copy.deepcopy(model)
        del model
        assert current() == sum(-(-p.nbytes // 64) * 64 for p in copied.parameters())

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
    def test_names_are_right_after_an_error_in_a_forward_pass(self, limit, kind):
        class Fails(nn.Module):
            def forward(self, x):
                self.kept = x + 1
                if fail:
                    raise kind
                return self.kept

        fail = True
        model = nn.Sequential(nn.Identity(), Fails())
        x = torch.ones(1000)
        with pytest.raises(kind):
            model(x)
        model[1].kept = None
        fail = False
        model(x)
        y = torch.ones(500)
        assert mt.cpu_pool().owners() == {
            "unnamed": x.nbytes + 32 + y.nbytes + 48,
            "Sequential.1": 4032,
        }

    def test_a_module_in_itself_and_one_that_was_called_alone(self, limit):
        class Again(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.kept = []

            def forward(self, x, depth=0):
                if depth < 2:
                    self(x, depth + 1)
                self.kept.append(self.inner(x))
                return x

        model = Again()
        with torch.no_grad():
            model.inner(torch.ones(1, 4))
            model(torch.ones(100, 4))
        assert mt.cpu_pool().owners()["Again.inner"] == 3 * 1600
        x = torch.ones(16)
        assert mt.cpu_pool().owners()["unnamed"] == 64 + 64 + x.nbytes  # weights, bias

    def test_off_no_hook_is_left(self, limit):
        from torch.nn.modules import module
        from torch.optim import optimizer

        tables = (
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
            module._global_forward_hooks_always_called,
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        )
        assert [len(each) for each in tables] == [1] * 5
        mt.limit_cpu("1GiB")
        assert [len(each) for each in tables] == [1] * 5
        mt.limit_cpu("1GiB", tag_modules=False)
        assert [len(each) for each in tables] == [0] * 5
        mt.limit_cpu("2GiB")  # another limit, and nothing else
        assert [len(each) for each in tables] == [0] * 5
        mt.limit_cpu("1GiB", tag_modules=True)
        assert [len(each) for each in tables] == [1] * 5
        mt.limit_cpu(None)
        assert [len(each) for each in tables] == [0] * 5
        mt.limit_cpu("1GiB", tag_modules=False)
        mt.limit_cpu(None)
        mt.limit_cpu("1GiB")
        assert [len(each) for each in tables] == [1] * 5

    def test_a_snapshot_opens_in_pytorchs_viewer(self, limit, tmp_path):
        model = network()
        y = model(torch.ones(32, 64))
        path = tmp_path / "memory.pickle"
        memory.snapshot(path, mt.cpu_pool())
        data = load(path)
        text = viz.memory(data, format_flamegraph=str)
        rows = [line for line in text.splitlines() if "tag:0:Sequential.2.0" in line]
        assert sum(int(line.rpartition(" ")[2]) for line in rows) == y.nbytes
        stats = mt.cpu_pool().stats()
        total = viz.Bytes(stats.requested_bytes)
        assert f"total_allocated: {total}\n" in viz.segsum(data)


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x * 2)
        return x.clone()

    @staticmethod
    def backward(context, slope):
        context.saved_tensors[0].sum()
        raise ZeroDivisionError("in backward")


def until_interrupted(delay, act):
    """Act again and again, and be interrupted after so many seconds."""
    signal.setitimer(signal.ITIMER_REAL, delay)
    for _ in range(1_000_000):
        act()


class TestFaults:
    def test_an_exception_in_a_backward_pass_leaves_nothing(self, limit):
        x = torch.ones(10_000, requires_grad=True)
        y = Breaks.apply(x * 3)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        del y
        gc.collect()
        assert current() == -(-x.nbytes // 64) * 64

    def test_every_allocation_of_a_step_fails_once(self, limit):
        """Each time it is our error, nothing is lost, and the next step is the same."""
        seed()
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.randn(16, 64)
        step(model, optimizer, x)
        optimizer.zero_grad(set_to_none=True)
        start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

        def restart():
            optimizer.zero_grad(set_to_none=True)
            model.load_state_dict(start[0])
            optimizer.load_state_dict(copy.deepcopy(start[1]))  # it takes them over
            gc.collect()

        wanted = [step(model, optimizer, x), *map(bits, model.state_dict().values())]
        restart()
        base, refused = current(), 0
        room = 0
        while True:
            mt.limit_cpu(base + room)
            try:
                loss = step(model, optimizer, x)
                break
            except ResourceExhaustedError as error:
                refused += 1
                missing = error.rounded_bytes + error.in_use_bytes - error.limit_bytes
                # Or enough was free, but not in one piece: then a page more.
                room += missing if missing > 0 else 4096
                caught = type(error), error.limit_bytes
            assert caught[0] is mt.OutOfMemoryError
            assert caught[1] < base + room
            mt.limit_cpu(LIMIT)
            restart()
            assert current() == base
        mt.limit_cpu(LIMIT)
        assert refused > 5
        assert [loss, *map(bits, model.state_dict().values())] == wanted

    def test_a_ctrl_c_in_training_leaves_nothing(self, limit):
        seed()
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(256, 64)
        step(model, optimizer, x)
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        base = current()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        for delay in (0.002, 0.0037, 0.01, 0.02):
            with pytest.raises(KeyboardInterrupt):
                until_interrupted(delay, lambda: step(model, optimizer, x))
            optimizer.zero_grad(set_to_none=True)
            gc.collect()
            assert current() == base
        signal.signal(signal.SIGALRM, before)
        step(model, optimizer, x)
        optimizer.zero_grad(set_to_none=True)

    def test_saved_loaded_and_copied_tensors_are_in_the_pool(self, limit, tmp_path):
        model = network()
        size = current()
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        assert current() == size
        state = torch.load(tmp_path / "weights.pt")
        assert current() == 2 * size
        other = copy.deepcopy(model)
        assert current() == 3 * size
        other.load_state_dict(state)
        again = list(map(bits, model.state_dict().values()))
        assert list(map(bits, other.state_dict().values())) == again
        mapped = torch.load(tmp_path / "weights.pt", mmap=True)
        assert current() == 3 * size  # a mapped file
        assert list(map(bits, mapped.values())) == again
        mt.limit_cpu(3 * size)
        with pytest.raises(ResourceExhaustedError):
            torch.load(tmp_path / "weights.pt")
        assert current() == 3 * size

    def test_training_has_the_same_bits(self, limit):
        def train():
            seed()
            model = nn.Sequential(
                *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 49, 10)),
            )
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            losses = []
            for _ in range(5):
                x, y = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                with torch.no_grad():
                    model.eval()(x)
                model.train()
            return losses, list(map(bits, model.state_dict().values()))

        mt.limit_cpu(None)
        assert inside(train, LIMIT) == train()

    def test_the_profiler_sees_the_memory(self, limit):
        def profiled():
            with torch.profiler.profile(profile_memory=True) as profile:
                x = torch.ones(1000, 1000)
                y = x @ x
                del x, y
            return {
                event.key: event.self_cpu_memory_usage
                for event in profile.key_averages()
                if event.self_cpu_memory_usage > 0
            }

        here = profiled()
        assert here["aten::mm"] == 4_000_000
        mt.limit_cpu(None)
        assert profiled() == here

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
    def test_traced_and_compiled_functions(self, limit):
        model = network()
        x = torch.ones(4, 64)
        want = model(x)
        traced = torch.jit.trace(model, x)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with pytest.warns(UserWarning, match="global hooks"):  # PyTorch's, of ours
            assert bits(compiled(x)) == bits(want)
        mt.limit_cpu(LIMIT, tag_modules=False)
        assert bits(compiled(x)) == bits(want)
        assert bits(traced(x)) == bits(want)
        # TorchScript keeps an error's text alone.
        large = torch.ones(1 << 15, 64)
        mt.limit_cpu(current() + MIB, tag_modules=False)
        with pytest.raises(RuntimeError, match="does not fit the memory limit"):
            traced(large)
        with pytest.raises(ResourceExhaustedError):
            compiled(large)
        del compiled, traced
        torch.compiler.reset()
