"""The program of repeated blocks against all plans of its model."""

from __future__ import annotations

import random

import pytest

from memcfg._core import search

INFINITE = float("inf")


def random_kind(chance: random.Random):
    crossing = chance.randint(1, 4)
    kept = crossing + chance.randint(0, 8)
    costs = sorted(chance.randint(0, 9) for _ in range(2))
    again = chance.randint(1, 9)
    ways = [
        (crossing, kept + chance.randint(1, 6), costs[1], again, again),
        (kept, kept + chance.randint(1, 6), 0, again, again),
    ]
    return ways, crossing, chance.randint(0, 3), kept, chance.randint(0, 3), again


class Optimum:
    """The least cost over all plans, by enumeration; segments may have any length."""

    def __init__(self, kinds, numbers) -> None:
        self.row = [kinds[number] for number in numbers]
        self.known: dict[tuple, float] = {}

    def within(self, limit: int) -> float:
        return self.rest(0, 0, len(self.row), limit, again=False)

    def rest(self, at: int, start: int, end: int, room: int, *, again: bool) -> float:
        """The least cost for blocks [at, end) of the chain [start, end)."""
        key = at, start, end, room, again
        if key not in self.known:
            self.known[key] = 0.0
            if at < end:
                costs = [*self.blocks(*key), *self.segments(*key)]
                self.known[key] = min(costs, default=INFINITE)
        return self.known[key]

    def blocks(self, at, start, end, room, again):
        gradient = self.row[end - 1][4] if again else 0
        ways, _, forward, _, _, _ = self.row[at]
        for kept, need, cost, made, made_last in ways:
            if max(need, kept + forward + gradient) <= room:
                more = made_last if at + 1 == end else made
                behind = self.rest(at + 1, start, end, room - kept, again=again)
                yield cost + (more if again else 0) + behind

    def segments(self, at, start, end, room, again):
        gradient = self.row[end - 1][4] if again else 0
        passing, before, advance = 0, 0, 0.0
        for stop in range(at + 1, end + 1):
            _, crossing, _, while_passing, _, made = self.row[stop - 1]
            passing = max(passing, before + while_passing + gradient)
            before, advance = crossing, advance + made
            if stop - at < 2 or stop - at >= end - start:
                continue
            straight = again and stop == end  # it goes backward next
            if passing > room and not straight:
                continue
            inside = self.rest(at, at, stop, room, again=True)
            behind = self.rest(stop, start, end, room - crossing, again=again)
            yield inside + behind + (advance if again and not straight else 0.0)


def test_the_program_finds_the_optimum_of_its_model():
    """Segments are planned for some budgets only, so not always."""
    worse = tried = 0
    for seed in range(40):
        chance = random.Random(seed)
        kinds = [random_kind(chance) for _ in range(chance.randint(1, 3))]
        numbers = [chance.randrange(len(kinds)) for _ in range(chance.randint(2, 7))]
        planner, optimum = search.BlockChain(kinds, numbers), Optimum(kinds, numbers)
        for limit in range(4, planner.most, 3):
            parts = planner.plan(limit)
            least = optimum.within(limit)
            tried += least < INFINITE
            if not parts:
                worse += least < INFINITE
                continue
            assert sum(length for d, _, length, _ in parts if d == 0) == len(numbers)
            needed, cost = judge(kinds, numbers, parts)
            assert needed <= limit
            assert cost >= least
            worse += cost > least
        assert judge(kinds, numbers, planner.plan(planner.most))[1] == 0
    assert worse <= tried // 50


def test_segments_are_planned_until_it_is_over():
    chance = random.Random(3)
    kinds = [random_kind(chance) for _ in range(3)]
    numbers = [index % 3 for index in range(30)]
    whole = search.BlockChain(kinds, numbers)
    ended = search.BlockChain(kinds, numbers, is_over=lambda: True)
    waited = search.BlockChain(kinds, numbers, is_over=lambda: False)
    least = next(n for n in range(whole.most) if whole.plan(n))
    assert any(way < 0 for *_, way in whole.plan(least))
    assert waited.plan(least) == whole.plan(least)
    assert not ended.plan(least)
    parts = ended.plan(whole.most)
    assert all(way >= 0 for *_, way in parts)
    assert judge(kinds, numbers, parts)[0] <= whole.most

    def raising():
        raise KeyError("over")

    with pytest.raises(KeyError, match="over"):
        search.BlockChain(kinds, numbers, is_over=raising)


def judge(kinds, numbers, parts) -> tuple[int, float]:
    """Bytes and cost of a plan, by the model's definition, part by part."""

    def walk(at: int, depth: int, end: int, gradient: int, again: bool):
        kept, most, cost = 0, 0, 0.0
        while at < len(parts) and parts[at][0] == depth and parts[at][1] < end:
            _, begin, length, way = parts[at]
            last = begin + length == end
            if way >= 0:
                ways, _, forward, _, _, _ = kinds[numbers[begin]]
                stays, need, price, made, made_last = ways[way]
                most = max(most, kept + max(need, stays + forward + gradient))
                cost += price + ((made_last if last else made) if again else 0)
                kept += stays
                at += 1
                continue
            row = [kinds[n] for n in numbers[begin : begin + length]]
            if not (again and last):
                before = 0
                for _, crossing, _, passing, _, advance in row:
                    most = max(most, kept + before + passing + gradient)
                    before = crossing
                    cost += advance if again else 0
            at, inside, price = walk(
                at + 1, depth + 1, begin + length, row[-1][4], True
            )
            most, cost = max(most, kept + inside), cost + price
            kept += row[-1][1]
        return at, most, cost

    at, most, cost = walk(0, 0, len(numbers), 0, False)
    assert at == len(parts)
    return most, cost
