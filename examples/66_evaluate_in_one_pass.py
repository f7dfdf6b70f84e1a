"""Evaluate a classifier in one pass, within the limit of its training.

Any number of evaluators see each batch once. They hold counts and sums, so their memory
does not depend on the number of samples; those of several workers can be merged.
"""

from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc

CLASSES, LIMIT = 4, "1MiB"
rng = np.random.default_rng(0)
centres = rng.normal(0, 1.0, (CLASSES, 8))


def samples(count):
    """Return points around the centres of classes, and their classes."""
    y = rng.integers(0, CLASSES, count)
    return (centres[y] + rng.normal(0, 1, (count, 8))).astype(np.float32), y


train, test = samples(2000), samples(5000)
data = mc.data.Dataset.from_tensor_slices(test).batch(50)
with mc.budget(LIMIT) as budget:
    mc.nn.utils.set_random_seed(0)
    model = mc.nn.Sequential(
        [
            mc.nn.Input((8,)),
            mc.nn.Dense(32, activation="relu"),
            mc.nn.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(mc.nn.Adam(0.01), "sparse_categorical_crossentropy")
    model.fit(*train, epochs=5, verbose=0)

    evaluation = mc.evaluation.Evaluation(labels=["ash", "birch", "elm", "oak"])
    roc = mc.evaluation.ROCMultiClass(100, labels=["ash", "birch", "elm", "oak"])
    calibration = mc.evaluation.EvaluationCalibration()
    model.do_evaluation(data, evaluation, roc, calibration)
    peak = mc.config.get_memory_info("CPU:0")["peak"]
    print(f"Within the limit: {peak <= budget.limit_bytes}")

print(evaluation.stats())
print()
print(roc.stats())
print(f"Calibration error: {calibration.expected_calibration_error():.3f}")
for each in (evaluation, roc, calibration):
    print(f"{type(each).__name__}: {each.state_bytes} bytes for {each.count} samples")

# Two workers, each with half of the data, and JSON between them.
halves = []
for part in (slice(0, 2500), slice(2500, None)):
    worker = evaluation.new_instance()
    model.do_evaluation((test[0][part], test[1][part]), worker)
    halves.append(worker.to_json())
merged, other = map(mc.evaluation.Evaluation.from_json, halves)
merged.merge(other)
print(f"Merged halves are the whole: {merged.to_json() == evaluation.to_json()}")

with TemporaryDirectory() as folder:
    roc.get_roc_curve(0).save(f"{folder}/ash.svg")
    evaluation.confusion_matrix().save(f"{folder}/confusion.svg")
