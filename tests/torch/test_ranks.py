"""Budgets of models that two processes train, by DDP and by FSDP2, over gloo."""

from __future__ import annotations

import pytest
import torch_ranks
from torch import distributed
from torch_ranks import AllUsed, Net, Ranks

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="PyTorch without gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two processes, which all tests share."""
    both = Ranks(str(tmp_path_factory.mktemp("ranks") / "store"))
    yield both
    both.close()


@pytest.mark.parametrize(
    ("order", "kind", "options"),
    [
        ("budget in DDP", AllUsed, {}),
        (
            "DDP, then budget",
            Net,
            {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        ),
        pytest.param(
            "budget in DDP", AllUsed, {"static_graph": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_ddp_trains_to_the_bits_of_no_budget_within_the_limit(
    ranks, order, kind, options
):
    for told in ranks.ask(torch_ranks.data_parallel, order, kind, **options):
        assert told["same"]
        assert told["peak"] <= told["predicted"] <= told["limit"] < told["eager"]
        assert "buckets of DDP" in told["report"]
        copies = {"static_graph", "find_unused_parameters"} & set(options)
        assert ("copies of outputs" in told["report"]) == bool(copies)


@pytest.mark.parametrize(
    ("order", "nested"),
    [
        pytest.param("budget, then fully_shard", False, marks=pytest.mark.slow),
        ("fully_shard, then budget", True),
    ],
)
def test_fsdp_trains_to_the_bits_of_no_budget_within_the_limit(ranks, order, nested):
    for told in ranks.ask(torch_ranks.fully_sharded, order, nested):
        assert told["same"]
        assert told["peak"] <= told["predicted"] <= told["limit"]
        assert "shards of FSDP" in told["report"]
        assert ("optimizer state" in told["report"]) == nested  # Adam's


@pytest.mark.parametrize("wrap", [pytest.param("DDP", marks=pytest.mark.slow), "FSDP"])
def test_one_refusal_refuses_all_and_nothing_hangs(ranks, wrap):
    first, second = ranks.ask(torch_ranks.refused_by_one, wrap)
    assert "Rank 1 has no plan of this step within its limit" in first["words"]
    assert "does not fit 64 B" in second["words"]
    for told in (first, second):
        assert told["as before"]
        assert told["next"]


def test_a_refusal_in_no_sync_is_of_one_rank_and_nothing_hangs(ranks):
    """That rank adds less to the sum, and all have the same one."""
    (first, one), (second, other) = ranks.ask(torch_ranks.refused_in_no_sync)
    assert (first, second) == (False, True)
    assert one == other


def test_a_rank_that_cannot_trace_is_named_on_the_others(ranks):
    first, second = ranks.ask(torch_ranks.broken_by_one)
    assert first[0]
    assert "cannot be traced as one graph" in first[1]
    assert not second[0]
    assert "rank 0 cannot run this step" in second[1]


@pytest.mark.parametrize(
    ("view", "joined"),
    [
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        (False, True),
    ],
)
def test_passes_without_a_reduction_and_uneven_batches(ranks, view, joined):
    assert ranks.ask(torch_ranks.accumulated, view, joined) == [True, True]


def test_fsdp_accumulates_and_evaluates(ranks):
    assert ranks.ask(torch_ranks.fully_sharded_accumulated) == [True, True]


def test_all_ranks_plan_with_the_seconds_that_one_has_measured(ranks, tmp_path):
    first, second = ranks.ask(torch_ranks.measured, str(tmp_path))
    assert first == second
    assert len(set(first)) > 3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a part", "call fully_shard on the whole model, too"),
        ("precision", "leave it out, and run forward under torch.autocast"),
        ("precision of DDP", "leave it out, and run forward under torch.autocast"),
    ],
)
def test_what_does_not_work_names_the_way_around(ranks, what, words):
    assert all(words in told for told in ranks.ask(torch_ranks.told_of, what))
