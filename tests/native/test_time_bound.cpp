#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memcfg/exact_schedule.hpp"
#include "memcfg/time_bound.hpp"
#include "steps.hpp"

using memcfg::exact::Verdict;
using memcfg::liveness::Index;
using memcfg::liveness::Step;
using memcfg::packing::Extent;
using memcfg::testing::Random;
using memcfg::testing::random_step;
using memcfg::time_bound::extra_cost;
using memcfg::time_bound::Network;

namespace {

constexpr std::int64_t kEnough = 10'000'000;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Arc {
  Index from, to;
  Extent capacity;
};

// The least capacity of arcs that leave a set with node 0 and without sinks.
Extent least_cut(std::size_t nodes,
                 const std::vector<Arc>& arcs,
                 const std::vector<char>& sink) {
  Extent least = std::numeric_limits<Extent>::max();
  for (std::size_t set = 1; set < (std::size_t{1} << nodes); set += 2) {
    const auto inside = [&](Index node) { return (set >> node) & 1; };
    bool legal = true;
    for (std::size_t node = 0; node < nodes; ++node)
      legal = legal && !(sink[node] && inside(static_cast<Index>(node)));
    if (!legal) continue;
    Extent sum = 0;
    for (const Arc& arc : arcs)
      if (inside(arc.from) && !inside(arc.to)) sum += arc.capacity;
    least = std::min(least, sum);
  }
  return least;
}

}  // namespace

TEST(what_arrives_is_the_least_cut) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random random(seed);
    constexpr std::size_t kNodes = 7;
    Network network(kNodes);
    std::vector<Arc> arcs;
    for (int i = 0; i < 14; ++i) {
      const auto from = static_cast<Index>(random() % kNodes);
      const auto to = static_cast<Index>(random() % kNodes);
      if (from == to) continue;
      arcs.push_back({from, to, static_cast<Extent>(random() % 9)});
      network.join(from, to, arcs.back().capacity);
    }
    std::vector<char> sink(kNodes, 0);
    std::vector<Extent> arrived(kNodes, 0);
    for (int i = 0; i < 3; ++i) {  // what has arrived stays when more is opened
      const auto node = static_cast<Index>(1 + random() % (kNodes - 1));
      network.open(node);
      sink[static_cast<std::size_t>(node)] = 1;
      network.run(arrived);
      Extent sum = 0;
      for (const Extent bytes : arrived) sum += bytes;
      CHECK(sum == least_cut(kNodes, arcs, sink));
    }
  }
}

TEST(no_schedule_takes_less_than_the_bound) {
  int raised = 0, refuted = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const Step step = random_step(random, 7);
    memcfg::liveness::Sequence given;
    for (std::size_t op = 0; op < step.ops(); ++op)
      given.push_back(static_cast<Index>(op));
    const Extent most = memcfg::schedule::score(step, given).load;
    for (Extent limit = most; limit > most / 3; limit -= 64) {
      const auto found = memcfg::exact::least_cost(step, limit, kEnough);
      if (found.verdict == Verdict::kUnknown) continue;
      const bool fits = found.verdict == Verdict::kFound;
      const double least =
          fits ? memcfg::schedule::score(step, found.sequence).cost : kInfinite;
      for (const std::int64_t effort : {std::int64_t{100}, kEnough}) {
        const double bound = extra_cost(step, limit, effort);
        CHECK(bound <= least * (1 + 1e-9) + 1e-9);
        raised += fits && bound > 0;
        refuted += bound == kInfinite;
      }
    }
  }
  CHECK(raised > 20 && refuted > 20);
}

TEST(more_effort_and_less_memory_never_lower_the_bound) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const Step step = random_step(random, 12);
    double before = 0;
    for (const std::int64_t effort : {std::int64_t{1}, std::int64_t{5000}, kEnough}) {
      const double bound = extra_cost(step, 64 * 14, effort);
      CHECK(bound >= before - 1e-9);
      before = bound;
    }
    CHECK(extra_cost(step, std::numeric_limits<Extent>::max() / 8, kEnough) == 0.0);
  }
}
