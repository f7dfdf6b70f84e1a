#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/exact_schedule.hpp"
#include "memcfg/max_flow.hpp"
#include "memcfg/reorder.hpp"
#include "memcfg/schedule.hpp"

using memcfg::liveness::Index;
using memcfg::liveness::Phase;
using memcfg::liveness::Sequence;
using memcfg::liveness::Step;
using memcfg::packing::Extent;
namespace exact = memcfg::exact;
namespace flow = memcfg::flow;

namespace {

void add_op(Step& step, const std::vector<Index>& reads, Extent bytes, Phase phase) {
  const auto op = static_cast<Index>(step.ops());
  step.inputs.add(reads);
  step.outputs.add({static_cast<Index>(step.tensors())});
  step.pairs.add({});
  step.scratch.push_back(0);
  step.phase.push_back(phase);
  step.cost.push_back(1);
  step.droppable.push_back(0);
  step.repeatable.push_back(1);
  step.bytes.push_back(bytes);
  step.persistent.push_back(0);
  step.keep.push_back(0);
  step.producer.push_back(op);
}

// n forward ops, a loss, n gradients; gradient 2n - i also reads what op i gives.
Step unit_chain(Index n) {
  Step step;
  for (Index i = 0; i <= 2 * n; ++i) {
    std::vector<Index> reads;
    if (i > 0) reads.push_back(i - 1);
    if (i > n && 2 * n - i != i - 1) reads.push_back(2 * n - i);
    add_op(step, reads, 1, i <= n ? Phase::kForward : Phase::kBackward);
  }
  step.keep.back() = 1;
  return step;
}

Step random_step(unsigned seed, Index ops) {
  std::mt19937 random(seed);
  Step step;
  for (Index i = 0; i < ops; ++i) {
    std::vector<Index> reads;
    for (Index k = 0; k < i; ++k)
      if (random() % 3 == 0) reads.push_back(k);
    add_op(step, reads, static_cast<Extent>(random() % 9), Phase::kForward);
  }
  step.keep.back() = 1;
  return step;
}

Sequence in_order(const Step& step) {
  Sequence sequence(step.ops());
  std::iota(sequence.begin(), sequence.end(), 0);
  return sequence;
}

bool is_sound(const Step& step, const Sequence& sequence) {
  return memcfg::schedule::find_fault(step, sequence).kind ==
         memcfg::schedule::Fault::Kind::kNone;
}

// The least load of all permutations that can run.
Extent least_of_all_orders(const Step& step) {
  Sequence order = in_order(step);
  Extent least = memcfg::schedule::score(step, order).load;
  while (std::next_permutation(order.begin(), order.end()))
    if (is_sound(step, order))
      least = std::min(least, memcfg::schedule::score(step, order).load);
  return least;
}

}  // namespace

TEST(a_cut_costs_what_the_flow_brings) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const flow::Node count = 2 + static_cast<flow::Node>(random() % 6);
    std::vector<std::vector<flow::Amount>> capacity(
        static_cast<std::size_t>(count),
        std::vector<flow::Amount>(static_cast<std::size_t>(count), 0));
    flow::MaxFlow network(static_cast<std::size_t>(count));
    for (flow::Node a = 0; a < count; ++a) {
      for (flow::Node b = 0; b < count; ++b) {
        if (a == b || random() % 2) continue;
        auto& amount =
            capacity[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        amount = static_cast<flow::Amount>(random() % 10);
        network.add_arc(a, b, amount);
      }
    }
    const auto cost = [&](const std::vector<std::uint8_t>& side) {
      flow::Amount sum = 0;
      for (std::size_t a = 0; a < side.size(); ++a)
        for (std::size_t b = 0; b < side.size(); ++b)
          if (side[a] && !side[b]) sum += capacity[a][b];
      return sum;
    };
    flow::Amount least = flow::kUnbounded;
    for (unsigned set = 0; set < 1u << count; ++set) {
      std::vector<std::uint8_t> side(static_cast<std::size_t>(count));
      for (std::size_t k = 0; k < side.size(); ++k) side[k] = set >> k & 1;
      if (side[0] && !side[1]) least = std::min(least, cost(side));
    }
    std::int64_t work = 0;
    CHECK(network.run(0, 1, work) == least);
    CHECK(cost(network.near_side(0)) == least);
    CHECK(cost(network.far_side(1)) == least);
  }
}

TEST(an_order_is_as_good_as_it_says_and_its_floor_holds) {
  int missed = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Step step = random_step(seed, 7);
    const auto found = memcfg::reorder::reorder(step, in_order(step), 1'000'000);
    CHECK(is_sound(step, found.sequence));
    CHECK(memcfg::schedule::score(step, found.sequence).load == found.load);
    const Extent least = least_of_all_orders(step);
    CHECK(found.floor <= least);
    CHECK(least <= found.load);
    missed += found.load > least;
  }
  CHECK(missed <= 4);
}

TEST(a_stopped_search_returns_an_order_that_is_none_the_worse) {
  int better = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Step step = random_step(seed, 7);
    const Sequence given = in_order(step);
    const memcfg::Stop stop{[](void*) { return true; }, nullptr};
    const auto found = memcfg::reorder::reorder(step, given, 1'000'000, stop);
    CHECK(is_sound(step, found.sequence));
    CHECK(found.load <= memcfg::schedule::score(step, given).load);
    better += memcfg::reorder::reorder(step, given, 1'000'000).load < found.load;
  }
  CHECK(better > 0);  // else it was not stopped
}

TEST(the_optima_of_checkmate_are_found) {
  const Step step = unit_chain(8);
  const std::size_t optima[] = {45, 26, 22, 21, 20, 19, 18, 17};
  for (Extent limit = 3; limit <= 10; ++limit) {
    const auto found = exact::least_cost(step, limit, 10'000'000);
    CHECK(found.verdict == exact::Verdict::kFound);
    CHECK(is_sound(step, found.sequence));
    CHECK(found.sequence.size() == optima[limit - 3]);
    CHECK(memcfg::schedule::score(step, found.sequence).load <= limit);
  }
  const auto none = exact::least_cost(step, 2, 10'000'000);
  CHECK(none.verdict == exact::Verdict::kNone);
  CHECK(none.next == 3);
  const auto least = exact::least_load(step, in_order(step), 10'000'000);
  CHECK(least.load == 3);
  CHECK(least.floor == 3);
}

TEST(a_search_that_is_cut_short_says_so) {
  const auto found = exact::least_cost(unit_chain(16), 5, 100);
  CHECK(found.verdict == exact::Verdict::kUnknown);
  CHECK(found.states > 0);
}

TEST(repetitions_never_need_more_than_the_best_order) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Step step = random_step(seed, 6);
    const auto found = exact::least_load(step, in_order(step), 10'000'000);
    CHECK(found.floor == found.load);
    CHECK(is_sound(step, found.sequence));
    CHECK(found.load <= least_of_all_orders(step));
  }
}
