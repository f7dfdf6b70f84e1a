"""What ``print(plan)`` shows."""

from __future__ import annotations

import re
from dataclasses import replace

from training_graphs import chain, random_step

from memcfg.graph import Graph, Op
from memcfg.plan import Plan, keep_all, replay_elementwise, share, sqrt_checkpoint


def test_the_facts_are_told():
    graph = chain(64, nbytes=1 << 20, reads="both")
    plan = sqrt_checkpoint()(graph)
    text = str(plan)
    lines = text.splitlines()
    assert lines[0] == "Plan of 'chain of 64' by sqrt_checkpoint"
    assert re.search(r"peak +14\.00 MiB  \(14680064 B\), 10\.8% of keep_all", text)
    assert re.search(r"limit +no limit", text)
    assert re.search(r"lower bound +4\.00 MiB", text)
    extra = plan.predicted.recompute_seconds
    share_of = extra / (plan.predicted.seconds - extra)
    assert re.search(r"^  nominal time +[\d.e+]+ s  recomp", text, re.MULTILINE)
    assert f"recomputation adds {share_of:.1%}" in text
    count = plan.summary.recomputed.count
    assert re.search(
        rf"recomputed +[\d.]+ MiB  {count} ops: f\d+, f\d+, f\d+, \.\.\.", text
    )
    assert re.search(r"at the peak, while '\w+' runs:", text)


def test_the_roles_at_the_peak_sum_to_it():
    for seed in range(30):
        for policy in (keep_all(), share(), replay_elementwise(), sqrt_checkpoint()):
            plan = policy(random_step(seed))
            by_role = plan.summary.by_role
            unused = plan.peak_bytes - sum(by_role.values())
            assert unused >= 0
            assert ("unused" in str(plan)) == (unused > 0)
            for role in by_role:
                assert f"    {role} " in str(plan)


def test_kept_shared_and_recomputed_are_counted():
    graph = chain(4, reads="both", in_place=True)
    summary = share()(graph).summary
    assert summary.kept.count == 4  # every x but the input is read backward
    assert summary.in_place.count == 4  # a gradient takes over the one before
    assert summary.recomputed.count == 0
    assert summary.all_bytes == keep_all()(graph).peak_bytes


def test_a_limit_is_shown_exactly():
    plan = share()(chain(4), 4100031)
    assert re.search(r"limit +3\.91 MiB  \(4100031 B\)", str(plan))


def test_a_graph_without_times_says_so():
    graph = chain(4)
    ops = tuple(Op(o.name, o.type, o.phase, o.inputs, o.outputs) for o in graph.ops)
    text = str(share()(Graph("untimed", graph.tensors, ops, graph.keep)))
    assert "the graph has no times" in text


def test_a_plan_from_a_file_tells_what_it_knows():
    plan = sqrt_checkpoint()(chain(30))
    again = Plan.from_json(plan.to_json())
    assert str(again).splitlines()[0] == str(plan).splitlines()[0]
    assert "recomputed" not in str(again)


def test_moved_bytes_are_shown():
    plan = share()(chain(4))
    predicted = replace(plan.predicted, moved_bytes=2048, host_peak_bytes=1024)
    text = str(replace(plan, predicted=predicted))
    assert re.search(r"moved +2\.00 KiB  at most 1\.00 KiB at a time", text)


def test_the_repr_of_a_plan_does_not_grow_with_its_graph():
    short, long = (repr(share()(chain(length))) for length in (4, 400))
    assert "peak_bytes=" in short
    assert len(long) < len(short) + 50
