"""What AUTOTUNE does in a pass: within its budget, and named in the report."""

from __future__ import annotations

import numpy as np
import pytest
from steps import passing

from memcfg import memory
from memcfg.data import AUTOTUNE, Dataset, Options


def test_a_pass_reports_what_was_chosen():
    data = Dataset.from_tensor_slices(np.zeros((2000, 4)))
    data = data.map(lambda row: row + 1, num_parallel_calls=AUTOTUNE)
    with iter(data.batch(10).prefetch(AUTOTUNE)) as batches:
        assert sum(len(batch) for batch in batches) == 2000
        report = batches.report()
    assert {stage.name for stage in report.stages} == {"map+batch", "prefetch"}
    assert all(stage.autotuned for stage in report.stages)
    assert "* chosen by AUTOTUNE" in str(report)


@pytest.mark.parametrize("batches", [4, 6])
@pytest.mark.parametrize("calls", [None, AUTOTUNE])
def test_a_pass_stays_within_its_budget(batches, calls):
    batch_bytes = 8 * 2**15
    options = Options()
    options.autotune.ram_budget = batches * batch_bytes
    dataset = Dataset.range(800).map(
        lambda i: np.full(2**13, i, np.float32), num_parallel_calls=calls
    )
    dataset = dataset.batch(8).prefetch(AUTOTUNE).with_options(options)
    pool = memory.Pool(limit="64MiB")
    with passing(dataset, pool) as elements:
        assert sum(len(element) for element in elements) == 800
    # Beside the buffers: the first batch, and what functions make on their way.
    assert pool.stats().peak_bytes < (batches + 2) * batch_bytes
    assert pool.stats().current_bytes == 0
