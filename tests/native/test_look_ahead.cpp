#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/look_ahead.hpp"
#include "steps.hpp"

using memcfg::liveness::Index;
using memcfg::liveness::Sequence;
using memcfg::liveness::Step;
using memcfg::look_ahead::Measure;
using memcfg::packing::Extent;
using memcfg::schedule::find_fault;
using memcfg::schedule::score;
using memcfg::testing::draw;
using memcfg::testing::Random;
using memcfg::testing::random_step;

namespace {

Sequence given(const Step& step) {
  Sequence sequence;
  for (std::size_t op = 0; op < step.ops(); ++op)
    sequence.push_back(static_cast<Index>(op));
  return sequence;
}

}  // namespace

TEST(a_measure_says_what_the_score_and_the_faults_say) {
  Random random(1);
  int legal = 0, wrong = 0;
  for (int round = 0; round < 300; ++round) {
    const Step step = random_step(random, 2 + draw(random, 20));
    Measure measure(step);
    for (int change = 0; change < 20; ++change) {
      Sequence sequence = given(step);
      for (Index k = draw(random, 6); k > 0; --k) {
        const auto place = draw(random, static_cast<Index>(sequence.size()) + 1);
        sequence.insert(sequence.begin() + place,
                        draw(random, static_cast<Index>(step.ops())));
      }
      if (draw(random, 8) == 0)
        sequence.erase(sequence.begin() +
                       draw(random, static_cast<Index>(sequence.size())));
      const bool right = find_fault(step, sequence).op < 0;
      CHECK(measure.run(sequence) == right);
      ++(right ? legal : wrong);
      if (!right) continue;
      const auto found = score(step, sequence);
      CHECK(measure.peak == found.load);
      CHECK(measure.cost == found.cost);
      CHECK(measure.replayed == found.replayed);
    }
  }
  CHECK(legal > 1000 && wrong > 1000);
}

TEST(a_descent_and_a_search_give_schedules_within_their_limits) {
  Random random(2);
  int lower = 0;
  for (int round = 0; round < 40; ++round) {
    const Step step = random_step(random, 20 + draw(random, 30));
    const auto rungs = memcfg::look_ahead::descend(step, given(step), 0, 50000);
    Extent above = score(step, rungs.front()).load + 1;
    for (const Sequence& rung : rungs) {
      CHECK(find_fault(step, rung).op < 0);
      CHECK(score(step, rung).load < above);
      above = score(step, rung).load;
    }
    lower += rungs.size() > 1;
    const auto found =
        memcfg::look_ahead::within(step, {rungs.front(), rungs.back()}, above, 50000);
    CHECK(find_fault(step, found).op < 0);
    CHECK(score(step, found).load <= above);
    CHECK(score(step, found).cost <= score(step, rungs.back()).cost);
  }
  CHECK(lower > 10);
}

TEST(long_sequences_are_searched_within_their_limits) {
  // A chain whose gradients read what was made: sparse tables of moments, and replays
  // that are left out in groups.
  constexpr Index kHalf = 12'000;
  Step step;
  const auto add_tensor = [&](Extent bytes, Index maker) {
    step.bytes.push_back(bytes);
    step.persistent.push_back(0);
    step.keep.push_back(0);
    step.producer.push_back(maker);
    return static_cast<Index>(step.bytes.size()) - 1;
  };
  const auto add_op = [&](std::vector<Index> inputs, Index output, bool backward) {
    step.inputs.add(inputs);
    step.outputs.add({output});
    step.pairs.add({});
    step.scratch.push_back(0);
    step.phase.push_back(backward ? memcfg::liveness::Phase::kBackward
                                  : memcfg::liveness::Phase::kForward);
    step.cost.push_back(1 + output % 3);
    step.droppable.push_back(!backward);
    step.repeatable.push_back(!backward);
  };
  std::vector<Index> made{add_tensor(64, -1)};
  for (Index op = 0; op < kHalf; ++op) {
    made.push_back(add_tensor(64 << (op % 3), op));
    add_op({made[static_cast<std::size_t>(op)]}, made.back(), false);
  }
  Index gradient = made.back();
  for (Index op = kHalf; op < 2 * kHalf; ++op) {
    const Index next = add_tensor(64, op);
    add_op({made[static_cast<std::size_t>(2 * kHalf - op)], gradient}, next, true);
    gradient = next;
  }
  step.keep.back() = 1;
  const auto most = score(step, given(step)).load;
  const Extent limit = most * 7 / 10;
  const auto rungs = memcfg::look_ahead::descend(step, given(step), limit, 20'000'000);
  CHECK(score(step, rungs.back()).load <= limit);
  CHECK(find_fault(step, rungs.back()).op < 0);
  const Sequence found =
      memcfg::look_ahead::within(step, {rungs.back()}, limit, 10'000'000);
  CHECK(!found.empty() && find_fault(step, found).op < 0);
  CHECK(score(step, found).load <= limit);
  CHECK(score(step, found).cost <= score(step, rungs.back()).cost);
}
