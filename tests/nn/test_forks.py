"""Forks: what a child makes works, what its parent was using is refused at once.

Each case runs in a process of its own with a time limit: a child that waits for ever
is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
amid_kernels = pytest.mark.skipif(
    os.environ.get("MEMCFG_KERNELS") == "reference",
    reason="a fork amid NumPy's matrix products leaves OpenBLAS's lock held",
)

BEGINNING = """
import os, signal, sys, threading, time, warnings
import numpy as np
import memcfg as mc
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
nn = mc.nn
rng = np.random.default_rng(0)
x = rng.standard_normal((256, 64)).astype(np.float32)
y = np.arange(256) % 4

def build():
    nn.set_random_seed(1)
    layers = [nn.Input((64,)), nn.Dense(256, activation="relu"), nn.Dense(4)]
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.05, momentum=0.9), loss)
    return model

def fit(model, epochs=1):
    model.fit(x, y, batch_size=128, epochs=epochs, verbose=0, seed=1)
    return [weight.tobytes() for weight in model.get_weights()]

def in_child(call):
    "What the call gives in the child of a fork, or its error."
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        try:
            text = repr(call())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000])
        os._exit(0)
    os.close(writing)
    text = os.read(reading, 4000).decode()
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "no answer"
    return text
"""


def said(source, threads="2"):
    """Run a program after `BEGINNING` in a process of its own; give what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + textwrap.dedent(source)],
        env=os.environ | {"OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.always
def test_a_child_trains_a_new_model_as_its_parent_does():
    assert (
        said("""
        def call():
            return fit(build()) == before

        before = fit(build())
        print(in_child(call), in_child(lambda: in_child(call)), call())
    """)
        == "True 'True' True\n"
    )


def test_a_child_goes_on_with_a_model_that_nobody_was_using():
    assert (
        said("""
        model, other = build(), build()
        fit(model)
        fit(other)
        after = fit(other)
        print(in_child(lambda: fit(model) == after), fit(model) == after)
    """)
        == "True True\n"
    )


def test_a_thread_forks_and_so_does_its_child():
    assert (
        said("""
        before, found = fit(build()), []

        def work():
            fit(build())
            found.append(in_child(lambda: fit(build()) == before))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(found)
    """)
        == "['True']\n"
    )


BESIDE = """
class Still(nn.SGD):
    "Stops in a step, before it is run, while it is armed."
    @property
    def learning_rate(self):
        if armed:
            inside.set()
            assert go_on.wait(60)
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        nn.SGD.learning_rate.fset(self, value)

inside, go_on, armed = threading.Event(), threading.Event(), False
model, idle, before = build(), build(), fit(build())
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(Still(0.05, momentum=0.9), loss)
fit(model)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_what_another_thread_was_using_is_refused_at_once(threads):
    done = said(
        BESIDE
        + """
armed = True
thread = threading.Thread(target=fit, args=(model,))
thread.start()
assert inside.wait(60)
uses = [
    lambda: model.predict(x, verbose=0),
    lambda: fit(model),
    lambda: model.get_weights(),
    lambda: model.compile("sgd", loss),
    lambda: model.close(),
]
for use in uses:
    print(in_child(use)[:60])
armed = False
print(in_child(lambda: fit(idle) == before), in_child(lambda: fit(build()) == before))
go_on.set()
thread.join()
""",
        threads,
    )
    refused = "RuntimeError: sequential: another thread was using it when t\n"
    assert done == 5 * refused + "True True\n"


@amid_kernels
def test_a_model_in_training_is_refused_between_two_steps_too():
    assert (
        said(
            BESIDE
            + """
def batches():
    yield from [(x[:128], y[:128])] * 4
    inside.set()
    assert go_on.wait(60)

thread = threading.Thread(target=lambda: model.fit(batches(), verbose=0))
thread.start()
assert inside.wait(60)
while model.optimizer.iterations < 3:
    time.sleep(0.01)
print(in_child(lambda: model.predict(x, verbose=0))[:60])
print(in_child(lambda: fit(build()) == before))
go_on.set()
thread.join()
"""
        )
        == "RuntimeError: sequential: another thread was using it when t\nTrue\n"
    )


def test_a_bound_on_programs_counts_those_of_the_child():
    assert (
        said("""
        mc.config.threading.set_inter_op_parallelism_threads(1)
        inside, go_on = threading.Event(), threading.Event()

        def stay(attributes, inputs, outputs):
            inside.set()
            assert go_on.wait(60)

        class Staying(nn.Layer):
            def trace(self, scope, inputs):
                return scope.apply("stay", inputs)[0]

        def alike(inputs, attributes):
            return [mc.ops.Spec(inputs[0].shape, inputs[0].dtype)]

        mc.ops.register(mc.ops.OpType("stay", 1, alike, stay))
        slow = nn.Sequential([nn.Input((64,)), Staying()])
        thread = threading.Thread(target=lambda: slow.predict(x[:8], verbose=0))
        thread.start()
        assert inside.wait(60)
        other = build()  # waits in the parent
        waiting = threading.Thread(target=lambda: other.predict(x[:8], verbose=0))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        print(in_child(lambda: len(fit(build()))))
        go_on.set()
        waiting.join()
        thread.join()
    """)
        == "4\n"
    )


@amid_kernels
def test_a_child_makes_a_model_while_its_parent_makes_others(tenths):
    """What oneDNN makes its kernels with is whole in the child, and no lock is held."""
    assert (
        said(f"""
        def made(units):
            model = nn.Sequential([nn.Input((64,)), nn.Dense(units), nn.Dense(4)])
            loss = nn.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("sgd", loss)
            return len([model.train_on_batch(x[:8], y[:8])])

        def make():
            units = 8
            while not over:
                units += 1
                made(8 + units % 1500)

        over = []
        thread = threading.Thread(target=make)
        thread.start()
        answers = [in_child(lambda: made(1600 + i)) for i in range(10 * {tenths})]
        over.append(True)
        thread.join()
        print(set(answers))
    """)
        == "{'1'}\n"
    )
