#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/large_neighbourhood.hpp"
#include "steps.hpp"

using memcfg::exact::Measured;
using memcfg::exact::Model;
using memcfg::exact::Search;
using memcfg::exact::Verdict;
using memcfg::exact::Window;
using memcfg::liveness::Index;
using memcfg::liveness::Sequence;
using memcfg::liveness::Step;
using memcfg::packing::Extent;
using memcfg::schedule::find_fault;
using memcfg::schedule::score;
using memcfg::testing::draw;
using memcfg::testing::Random;
using memcfg::testing::random_step;

namespace {

Sequence given(const Step& step) {
  Sequence sequence(step.ops());
  std::iota(sequence.begin(), sequence.end(), 0);
  return sequence;
}

struct Start {
  Sequence sequence;
  Extent limit;
};

// Schedules of a step within limits from the lowest one's bytes to the given order's.
std::vector<Start> starts(const Step& step, std::int64_t work) {
  const auto rungs = memcfg::look_ahead::descend(step, given(step), 0, work);
  const Extent top = score(step, given(step)).load;
  const Extent low = score(step, rungs.back()).load;
  std::vector<Start> found;
  for (Extent part = 0; part < 4; ++part) {
    const Extent limit = low + (top - low) * part / 4;
    found.push_back(
        {memcfg::look_ahead::within(step, {given(step), rungs.back()}, limit, work),
         limit});
  }
  return found;
}

}  // namespace

TEST(a_window_of_everything_has_the_best_schedule_of_all) {
  Random random(1);
  int compared = 0;
  for (int round = 0; round < 40; ++round) {
    const Step step = random_step(random, 4 + draw(random, 10));
    for (const auto& [start, limit] : starts(step, 10000)) {
      const auto best = memcfg::exact::least_cost(step, limit, 1000000);
      Measured measured(step);
      measured.set(start);
      const Window window(
          measured, 0, static_cast<Index>(start.size()), given(step), limit);
      CHECK(window.holds);
      CHECK(window.cost.cost == score(step, start).cost);
      const auto found = Search(window.model, limit, true, 1000000).run();
      CHECK(best.verdict == Verdict::kFound && found.verdict == Verdict::kFound);
      const Sequence whole = window.replaced(found.sequence);
      CHECK(find_fault(step, whole).op < 0);
      CHECK(score(step, whole).load <= limit);
      CHECK(score(step, whole).cost == score(step, best.sequence).cost);
      CHECK(score(step, whole).replayed == score(step, best.sequence).replayed);
      ++compared;
    }
  }
  CHECK(compared == 160);
}

TEST(a_part_is_planned_no_worse_than_it_was_and_the_rest_stays) {
  Random random(2);
  int planned = 0, cheaper = 0, within = 0;
  for (int round = 0; round < 60; ++round) {
    const Step step = random_step(random, 16 + draw(random, 16));
    for (const auto& [start, limit] : starts(step, 20000)) {
      Measured measured(step);
      measured.set(start);
      for (int draws = 0; draws < 8; ++draws) {
        const auto length = static_cast<Index>(start.size());
        const Index begin = draw(random, length);
        const Index end = begin + 1 + draw(random, length - begin);
        std::vector<Index> ops;
        for (Index k = 1 + draw(random, 8); k > 0; --k)
          ops.push_back(draw(random, static_cast<Index>(step.ops())));
        const Window window(measured, begin, end, ops, limit);
        if (!window.holds) continue;
        const auto found = Search(window.model, limit, true, 20000).run();
        if (found.verdict == Verdict::kUnknown) continue;
        CHECK(found.verdict == Verdict::kFound);  // the part itself is one
        const Sequence whole = window.replaced(found.sequence);
        CHECK(find_fault(step, whole).op < 0);
        for (Index place = 0; place < begin; ++place)
          CHECK(whole[Model::at(place)] == start[Model::at(place)]);
        CHECK(std::equal(start.begin() + end,
                         start.end(),
                         whole.end() - (start.end() - start.begin() - end)));
        const auto before = score(step, start), after = score(step, whole);
        CHECK(after.cost <= before.cost);
        ++planned;
        cheaper += after.cost < before.cost;
        within += after.load <= limit;
      }
    }
  }
  CHECK(planned > 1000 && cheaper > 5);
  CHECK(within == planned);
}

TEST(each_schedule_is_cheaper_than_the_one_before) {
  Random random(3);
  int better = 0;
  for (int round = 0; round < 40; ++round) {
    const Step step = random_step(random, 30 + draw(random, 30));
    for (const auto& [start, limit] : starts(step, 20000)) {
      double cost = score(step, start).cost;
      const auto found =
          memcfg::large_neighbourhood::replanned(step, start, limit, 20000);
      CHECK(found == memcfg::large_neighbourhood::replanned(step, start, limit, 20000));
      for (const Sequence& each : found) {
        CHECK(find_fault(step, each).op < 0);
        CHECK(score(step, each).load <= limit);
        CHECK(score(step, each).cost < cost);
        cost = score(step, each).cost;
      }
      better += !found.empty();
    }
  }
  CHECK(better > 10);
}

TEST(a_search_that_is_stopped_ends) {
  Random random(4);
  const Step step = random_step(random, 40);
  memcfg::Stop stop;
  stop.ask = [](void*) { return true; };
  for (const auto& [start, limit] : starts(step, 20000))
    CHECK(memcfg::large_neighbourhood::replanned(step, start, limit, 1 << 30, stop)
              .empty());
}
