"""`fit` over processes of MPI: the same script, and what a failure leaves."""

import os
import random
import signal
import time

import pytest
from mpi_runs import MpiRun, needs_launcher

pytestmark = [needs_launcher(), pytest.mark.always]
SLOW = pytest.mark.slow
SHARDINGS = [
    "parameters",
    *(pytest.param(each, marks=SLOW) for each in (None, "optimizer", "gradients")),
]

MODEL = """
import memcfg as mc
mc.nn.utils.set_random_seed(rank)  # weights and orders are those of rank 0
layers = [mc.nn.Dense(48, activation="relu"), mc.nn.Dense(3)]
model = mc.nn.Sequential([mc.nn.Input((8,)), *layers])
loss = mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(mc.nn.optimizers.Adam(0.01), loss)
data = np.random.default_rng(5)
x, y = data.standard_normal((96, 8)).astype("float32"), data.integers(0, 3, 96)

known = []  # weights after the last step that callbacks saw

def total():
    return [float(np.abs(each).sum()).hex() for each in model.get_weights()]
"""


@pytest.mark.parametrize("mode", ["all_reduce", "averaging"])
def test_a_script_of_one_process_trains_over_all(mode, tmp_path):
    """Without a communicator, ranks are those that the launcher has started."""
    program = f"""{MODEL}
import warnings
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    wrapper = mc.parallel.ParallelWrapper(model, workers=4, training_mode={mode!r})
with wrapper:
    logs = wrapper.fit(x, y, batch_size=30, epochs=2, verbose=0).history
report(workers=wrapper.workers, said=[str(each.message) for each in heard])
report(total=total(), loss=[each.hex() for each in logs["loss"]])
"""
    with MpiRun(2, program, tmp_path) as run:
        assert run.wait() == (0, "")
        (_, told, one), (_, _, other) = run.reports(0), run.reports(1)
    assert told["workers"] == 2
    assert told["said"] == ["workers=4 is not used: each of the 2 ranks is a worker"]
    assert one == other


def test_an_error_of_a_rank_ends_the_step_of_all_and_leaves_whole_weights(tmp_path):
    program = f"""{MODEL}
class Fails(mc.nn.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and rank == 1:
            raise ValueError("rank 1 has had enough")
        known[:] = total()

group = mpi_communicator(timeout=30)
try:
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=group
    ) as wrapper:
        wrapper.fit(x, y, batch_size=8, verbose=0, callbacks=[Fails()])
except (CommunicationError, ValueError) as error:
    report(error=f"{{type(error).__name__}}: {{error}}", same=total() == known)
"""
    with MpiRun(2, program, tmp_path) as run:
        run.wait()
        (_, first), (_, second) = run.reports(0), run.reports(1)
    wanted = "CommunicationError: rank 1 failed: ValueError: rank 1 has had enough"
    assert first["error"] == wanted
    assert first["same"]  # as before the step that rank 1 did not take
    assert second["error"] == "ValueError: rank 1 has had enough"


@pytest.mark.parametrize("how", ["killed", "suspended"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 31))]
)
def test_a_rank_lost_in_training_leaves_no_process_and_whole_weights(
    how, seed, tmp_path
):
    """The other rank gets an error by the timeout, unless the launcher ends it."""
    program = f"""{MODEL}
class Notes(mc.nn.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        known[:] = total()

MPI.COMM_WORLD.Barrier()
group = mpi_communicator(timeout=2.0)
report(begun=True)
try:
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", communicator=group
    ) as wrapper:
        wrapper.fit(x, y, batch_size=8, epochs=10_000, verbose=0, callbacks=[Notes()])
except CommunicationError as error:
    report(ranks=error.ranks, same=total() == known)
"""
    options = ["-disable-auto-cleanup"] * (how == "killed")
    with MpiRun(2, program, tmp_path, options=options) as run:
        pid = run.await_reports(1, 2)[0]["pid"]
        time.sleep(1.0 + random.Random(seed).random())
        os.kill(pid, signal.SIGSTOP if how == "suspended" else signal.SIGKILL)
        status, _ = run.wait()
        assert status != 0
        _, _, *said = run.reports(0)
    if how == "suspended":  # the launcher may end the others of a rank that is gone
        assert said
    assert all(1 in each["ranks"] and each["same"] for each in said)


SHARDED = f"""{MODEL}
mc.nn.utils.set_random_seed(0)
whole = mc.nn.Sequential.from_config(model.get_config())
totals, numbers = [], []

def state(model):
    held = [*model.get_weights(), *model.optimizer.get_state().values()]
    return [float(np.abs(each).sum()).hex() for each in held]

class Fails(mc.nn.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4 and rank == 1:
            HOW

class Saves(mc.nn.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save(PATH)

def fit(model, size, callbacks=(), communicator=None, epochs=1):
    with mc.parallel.ParallelWrapper(
        model, training_mode="all_reduce", shard=SHARD, communicator=communicator
    ) as wrapper:
        return wrapper.fit(
            x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
            callbacks=[*callbacks],
        ).history["loss"]
"""


@pytest.mark.parametrize("shard", SHARDINGS)
def test_a_rank_that_raises_leaves_the_parts_of_all(shard, tmp_path):
    """What `model` holds then is what a run of as many steps has, to the bit."""
    program = SHARDED.replace("HOW", "raise ValueError('enough')")
    program = program.replace("PATH", "''").replace("SHARD", repr(shard))
    program += """
whole.compile(mc.nn.optimizers.Adam(0.01), loss)
whole.set_weights(model.get_weights())
x, y = x[:40], y[:40]
group = mpi_communicator(timeout=20)
fit(whole, 2, communicator=group)
group.close()
data = np.random.default_rng(5)
x, y = data.standard_normal((96, 8)).astype("float32"), data.integers(0, 3, 96)
group = mpi_communicator(timeout=20)
try:
    fit(model, 2, [Fails()], communicator=group)
except (CommunicationError, ValueError) as error:
    report(error=str(error), same=state(model) == state(whole))
"""
    with MpiRun(2, program, tmp_path) as run:
        run.wait()
        (_, first), (_, second) = run.reports(0), run.reports(1)
    assert "enough" in first["error"]
    assert first["same"]
    assert second == {"error": "enough", "same": True}


@pytest.mark.parametrize("shard", SHARDINGS)
def test_fewer_ranks_go_on_from_a_checkpoint_when_one_is_killed(shard, tmp_path):
    """Survivors have weights, or NaN where parts of them are lost; and go on alone."""
    path = str(tmp_path / "{}.memcfg")
    program = SHARDED.replace("HOW", "os.kill(os.getpid(), 9)")
    program = program.replace("PATH", f"{path!r}.format(rank)")
    program = program.replace("SHARD", repr(shard))
    program += """
import warnings
group = mpi_communicator(timeout=2)
fit(model, 3, [Saves()], communicator=group)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    try:
        fit(model, 3, [Fails()], communicator=group)
    except CommunicationError as error:
        values = [*model.get_weights(), *model.optimizer.get_state().values()]
        count = len(model.get_weights())
        nan = [bool(np.isnan(each).any()) for each in values]
        said = [str(each.message) for each in heard]
        report(weights=any(nan[:count]), state=any(nan[count:]), said=said)
report(done=True)
"""
    options = ["-disable-auto-cleanup"]
    folder = tmp_path / "killed"
    folder.mkdir()
    with MpiRun(3, program, folder, options=options) as run:
        run.wait()
        said = [run.reports(rank)[1:] for rank in (0, 2)]
    for each in said:
        if not each:  # the launcher has ended it as well
            continue
        assert each[0]["weights"] == (shard == "parameters")
        assert not each[0]["state"]
        lost = [text for text in each[0]["said"] if "lost" in text]
        assert bool(lost) == (shard is not None)
    # Two go on from what three have written, and lose nothing.
    again = SHARDED.replace("HOW", "pass").replace("PATH", "''")
    again = (
        again.replace("SHARD", repr(shard))
        + f"""
restored = mc.nn.models.load_model({path!r}.format(0))
report(losses=fit(restored, size, epochs=2))
"""
    )
    losses = []
    for size in (2, 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        with MpiRun(size, again, folder) as run:
            assert run.wait() == (0, "")
            losses.append(run.reports(0)[1]["losses"])
    two, three = losses
    assert two == pytest.approx(three, rel=1e-6)


EVALUATED = """
import memcfg as mc
model = mc.nn.Sequential([mc.nn.Input((1,)), mc.nn.Dense(1, activation="sigmoid")])
model.set_weights([np.ones((1, 1), "float32"), np.zeros(1, "float32")])
model.compile(loss="binary_crossentropy")
draw = np.random.default_rng(3)
x = draw.standard_normal((1200, 1)).astype("float32")
y = (draw.random((1200, 1)) < 1 / (1 + np.exp(-x))).astype("float32")
# Batches of rank 0 have other scores; those of rank 1 have few, which stay in memory.
for begin in range(100, 1200, 200):
    x[begin : begin + 100] = np.round(x[begin : begin + 100])
folder = os.path.join(FOLDER, str(rank))
os.mkdir(folder)

def given(spills):
    options = {"spill_to": folder} if spills else {}
    roc = mc.evaluation.ROC(byte_limit="16KiB", **options)
    return mc.evaluation.EvaluationBinary(1), roc

group = mpi_communicator(timeout=30)
wrapper = mc.parallel.ParallelWrapper(model, communicator=group)
"""


def test_a_roc_that_one_rank_has_spilled_merges_over_ranks(tmp_path):
    program = EVALUATED.replace("FOLDER", repr(str(tmp_path / "spilled")))
    program += """
binary, roc = wrapper.do_evaluation((x, y), *given(True), batch_size=100)
found = given(True)
for batch in range(rank, 12, 2):
    rows = slice(100 * batch, 100 * batch + 100)
    model.do_evaluation((x[rows], y[rows]), *found, batch_size=100)
one, whole = mc.evaluation.EvaluationBinary(1), mc.evaluation.ROC()
model.do_evaluation((x, y), one, whole, batch_size=100)
report(
    spilled=found[1].spilled_bytes, count=roc.count, binary=binary.to_json(),
    auc=roc.calculate_auc().hex(), whole=whole.calculate_auc().hex(),
    one=one.to_json(),
)
wrapper.close()
group.close()
"""
    (tmp_path / "spilled").mkdir()
    with MpiRun(2, program, tmp_path) as run:
        assert run.wait() == (0, "")
        (_, first), (_, second) = run.reports(0), run.reports(1)
    assert first["spilled"] > 0
    assert second["spilled"] == 0
    for each in (first, second):
        assert each["count"] == 1200
        assert each["auc"] == each["whole"] == first["auc"]
        assert each["binary"] == each["one"] == first["one"]


def test_scores_that_a_rank_cannot_merge_are_an_error_of_all_at_once(tmp_path):
    """Rank 1 has no folder for those of rank 0; the group goes on."""
    program = EVALUATED.replace("FOLDER", repr(str(tmp_path / "spilled")))
    program += """
binary, roc = given(rank == 0)
begun = time.monotonic()
try:
    wrapper.do_evaluation((x, y), binary, roc, batch_size=100)
except (CommunicationError, MemoryError) as error:
    kind, text = type(error).__name__, str(error)
    report(kind=kind, text=text, seconds=time.monotonic() - begun)
report(counts=[binary.count, roc.count])
again = wrapper.do_evaluation((x, y), mc.evaluation.EvaluationBinary(1))
report(count=again.count)
wrapper.close()
group.close()
"""
    (tmp_path / "spilled").mkdir()
    with MpiRun(2, program, tmp_path) as run:
        assert run.wait() == (0, "")
        (_, *first), (_, *second) = run.reports(0), run.reports(1)
    assert first[0]["kind"] == "CommunicationError"
    assert second[0]["kind"] == "ResourceExhaustedError"
    assert first[0]["text"].startswith("rank 1 failed: ResourceExhaustedError: ")
    for said, counts, again in (first, second):
        assert "Pass spill_to=folder, a larger byte_limit" in said["text"]
        assert said["seconds"] < 25  # of 30 until ranks give up
        assert counts == {"counts": [0, 0]}
        assert again == {"count": 1200}
