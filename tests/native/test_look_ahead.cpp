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
