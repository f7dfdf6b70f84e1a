#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/pack.hpp"
#include "memcfg/segments.hpp"

using memcfg::Stop;
using memcfg::packing::Buffer;
using memcfg::packing::Buffers;
using memcfg::packing::ExactSearch;
using memcfg::packing::Extent;
using memcfg::packing::Fit;
using memcfg::packing::Layout;
using memcfg::packing::max_load;
using memcfg::packing::Occupancy;
using memcfg::packing::Order;
using memcfg::packing::pack;
using memcfg::packing::Packing;
using memcfg::packing::Permutation;
using memcfg::packing::Placed;
using memcfg::packing::Verdict;

namespace {

// The definition, pair by pair.
bool legal(const Buffers& buffers, const Layout& layout) {
  Extent height = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& a = buffers[i];
    if (layout.offsets[i] < 0) return false;
    if (a.size > 0) height = std::max(height, layout.offsets[i] + a.size);
    for (std::size_t j = 0; j < i; ++j) {
      const Buffer& b = buffers[j];
      const bool in_time = a.lower < b.upper && b.lower < a.upper;
      const bool in_space = layout.offsets[i] < layout.offsets[j] + b.size &&
                            layout.offsets[j] < layout.offsets[i] + a.size;
      if (in_time && in_space && a.size > 0 && b.size > 0) return false;
    }
  }
  return height == layout.height;
}

Buffers random_buffers(unsigned seed, std::size_t count) {
  std::mt19937 random(seed);
  Buffers buffers;
  for (std::size_t i = 0; i < count; ++i) {
    const auto lower = static_cast<std::int64_t>(random() % 20);
    const auto life = static_cast<std::int64_t>(1 + random() % 10);
    buffers.push_back({lower, lower + life, static_cast<Extent>(random() % 9)});
  }
  return buffers;
}

// The least height over all orders and first fit, which contains an optimum.
Extent least_height(const Buffers& buffers) {
  Permutation order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  Extent least = std::numeric_limits<Extent>::max();
  Layout layout;
  Occupancy occupancy(buffers);
  std::int64_t work = 0;
  do {
    place_in_order(buffers, order, Fit::kFirst, least, layout, occupancy, work);
    least = std::min(least, layout.height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

}  // namespace

TEST(nothing_has_no_height) {
  const Packing result = pack({}, 1000);
  CHECK(result.layout.height == 0 && result.bound == 0 &&
        result.layout.offsets.empty());
}

TEST(sizes_of_zero_take_no_memory) {
  const Buffers buffers{{0, 5, 0}, {0, 5, 64}, {2, 3, 0}};
  const Packing result = pack(buffers, 1000);
  CHECK(result.layout.height == 64 && legal(buffers, result.layout));
}

TEST(load_counts_ends_before_starts) {
  CHECK(max_load({{0, 2, 5}, {2, 4, 7}}) == 7);
  CHECK(max_load({{0, 3, 5}, {2, 4, 7}}) == 12);
  CHECK(max_load({{-4, -2, 5}, {-3, 9, 1}}) == 6);
}

TEST(fits_choose_their_gap) {
  // At time 0 the gaps are [0, 4), [6, 8) and what is above 9.
  const std::vector<Placed> placed{{4, 6, 0, 1}, {8, 9, 0, 1}};
  CHECK(find_gap({0, 1, 2}, placed, Fit::kFirst) == 0);
  CHECK(find_gap({0, 1, 2}, placed, Fit::kBest) == 6);
  CHECK(find_gap({0, 1, 5}, placed, Fit::kBest) == 9);
  CHECK(find_gap({1, 2, 5}, placed, Fit::kFirst) == 0);
}

TEST(first_fit_takes_the_lowest_gap_in_time) {
  // The third lies where the second was, the fourth above it.
  const Buffers buffers{{0, 9, 6}, {0, 2, 4}, {2, 5, 3}, {3, 5, 4}};
  const Packing made = memcfg::packing::first_fit(buffers);
  CHECK((made.layout.offsets == std::vector<Extent>{0, 6, 6, 9}));
  CHECK(made.layout.height == 13 && made.bound == 13);
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Buffers drawn = random_buffers(seed, 1 + seed % 40);
    const Packing found = memcfg::packing::first_fit(drawn);
    CHECK(legal(drawn, found.layout));
    CHECK(found.bound == max_load(drawn) && found.layout.height >= found.bound);
    CHECK(pack(drawn, 1000).layout.height <= found.layout.height);
  }
}

TEST(a_tree_of_lifetimes_places_as_a_list_does) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Buffers buffers = random_buffers(seed, 1 + seed % 80);
    Occupancy list(buffers, buffers.size()), tree(buffers, 0);
    Layout one, other;
    for (const Order order : {Order::kSize, Order::kStart, Order::kConflicts})
      for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
        const Permutation sorted = memcfg::packing::sorted_by(order, buffers);
        std::int64_t work = 0;
        const Extent most = std::numeric_limits<Extent>::max();
        place_in_order(buffers, sorted, fit, most, one, list, work);
        place_in_order(buffers, sorted, fit, most, other, tree, work);
        CHECK(one.offsets == other.offsets && one.height == other.height);
        CHECK(legal(buffers, other));
      }
  }
}

TEST(a_sweep_places_as_its_order_does) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Buffers buffers = random_buffers(seed, 1 + seed % 80);
    Occupancy list(buffers);
    for (const Order order : {Order::kStart, Order::kEnd})
      for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
        const Permutation sorted = memcfg::packing::sorted_by(order, buffers);
        Layout one;
        std::int64_t work = 0;
        const Extent most = std::numeric_limits<Extent>::max();
        place_in_order(buffers, sorted, fit, most, one, list, work);
        const Layout other =
            memcfg::packing::sweep(buffers, sorted, fit, order == Order::kEnd);
        CHECK(one.offsets == other.offsets && one.height == other.height);
      }
  }
}

TEST(many_buffers_are_placed_no_higher_than_by_first_fit) {
  std::mt19937 random(1);
  Buffers buffers;
  for (std::int64_t i = 0; i < 6000; ++i) {
    const auto life = static_cast<std::int64_t>(1 + random() % (i % 10 ? 20 : 900));
    buffers.push_back({i / 2, i / 2 + life, static_cast<Extent>(1 + random() % 99)});
  }
  const Packing made = pack(buffers, 1000);
  CHECK(legal(buffers, made.layout));
  CHECK(made.layout.height <= memcfg::packing::first_fit(buffers).layout.height);
}

TEST(a_tree_of_lifetimes_knows_the_bytes_that_are_taken) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Buffers buffers = random_buffers(seed, 40);
    Occupancy tree(buffers, 0);
    std::mt19937 random(seed);
    std::vector<Placed> all;
    for (const Buffer& b : buffers) {
      std::vector<char> wanted(64, 0), told(64, 0);
      const auto mark = [](std::vector<char>& bytes, const Placed& p) {
        for (Extent i = p.offset; i < p.end; ++i)
          bytes[static_cast<std::size_t>(i)] = 1;
      };
      for (const Placed& p : all)
        if (p.lower < b.upper && b.lower < p.upper) mark(wanted, p);
      std::int64_t work = 0;
      const std::vector<Placed>& found = tree.around(b.lower, b.upper, work);
      CHECK(work >= static_cast<std::int64_t>(found.size()));
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i].lower < b.upper && b.lower < found[i].upper);
        CHECK(i == 0 || found[i - 1].offset <= found[i].offset);
        mark(told, found[i]);
      }
      CHECK(told == wanted);
      const auto offset = static_cast<Extent>(random() % 56);
      const auto size = static_cast<Extent>(1 + random() % 8);
      all.push_back({offset, offset + size, b.lower, b.upper});
      tree.add(all.back());
    }
  }
}

TEST(orders_are_permutations_that_obey_their_key) {
  const Buffers buffers{{0, 9, 1}, {3, 4, 8}, {2, 8, 3}, {5, 6, 8}};
  using memcfg::packing::sorted_by;
  CHECK(sorted_by(Order::kSize, buffers) == Permutation({1, 3, 2, 0}));
  CHECK(sorted_by(Order::kArea, buffers) == Permutation({2, 0, 1, 3}));
  CHECK(sorted_by(Order::kLifetime, buffers) == Permutation({0, 2, 1, 3}));
  CHECK(sorted_by(Order::kStart, buffers) == Permutation({0, 2, 1, 3}));
  CHECK(sorted_by(Order::kEnd, buffers) == Permutation({0, 2, 3, 1}));
  const std::vector<double> bytes = memcfg::packing::conflict_bytes(buffers);
  CHECK(bytes == std::vector<double>({20, 12, 20, 12}));
}

TEST(every_packing_is_legal_and_bounded) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Buffers buffers = random_buffers(seed, 1 + seed % 60);
    const Packing result = pack(buffers, 20000);
    CHECK(legal(buffers, result.layout));
    CHECK(result.bound == max_load(buffers) && result.layout.height >= result.bound);
    const Packing again = pack(buffers, 20000);
    CHECK(again.layout.offsets == result.layout.offsets);
  }
}

TEST(small_buffers_do_not_keep_large_ones_from_their_best_layout) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Buffers buffers = random_buffers(seed, 40);
    for (auto& each : buffers) each.size *= 1'000'000;
    const Extent large = pack(buffers, 1'000'000).layout.height;
    const Buffers small = random_buffers(seed + 100, 400);
    buffers.insert(buffers.end(), small.begin(), small.end());
    const Packing result = pack(buffers, 1'000'000);
    CHECK(legal(buffers, result.layout) && result.floor >= result.bound);
    CHECK(result.layout.height <= large + large / 1000);
  }
}

TEST(small_packings_are_optimal) {
  int above = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Buffers buffers = random_buffers(seed, 7);
    const Extent least = least_height(buffers);
    const Extent found = pack(buffers, 200000).layout.height;
    CHECK(found >= least);
    above += found > least;
  }
  CHECK(above == 0);
}

namespace {

// Buffers that fill up to `capacity` in most sections of time.
Buffers dense_buffers(unsigned seed, Extent capacity) {
  constexpr int kTimes = 16;
  std::mt19937 random(seed);
  std::vector<Extent> load(kTimes, 0);
  Buffers buffers;
  for (int tries = 0; tries < 400 && buffers.size() < 12; ++tries) {
    const int lower = static_cast<int>(random() % kTimes);
    const int upper = std::min(kTimes, lower + 1 + static_cast<int>(random() % 8));
    const auto size = static_cast<Extent>(1 + random() % 4);
    if (*std::max_element(load.begin() + lower, load.begin() + upper) + size > capacity)
      continue;
    for (int at = lower; at < upper; ++at) load[static_cast<std::size_t>(at)] += size;
    buffers.push_back({lower, upper, size});
  }
  return buffers;
}

// Every offset of every buffer.
bool fits_somewhere(const Buffers& buffers,
                    Extent capacity,
                    std::vector<Extent>& offsets) {
  const std::size_t i = offsets.size();
  if (i == buffers.size()) return true;
  const Buffer& b = buffers[i];
  for (Extent offset = 0; offset + b.size <= capacity; ++offset) {
    bool free = true;
    for (std::size_t j = 0; j < i && free; ++j)
      free = buffers[j].upper <= b.lower || b.upper <= buffers[j].lower ||
             offsets[j] + buffers[j].size <= offset || offset + b.size <= offsets[j];
    if (!free) continue;
    offsets.push_back(offset);
    if (fits_somewhere(buffers, capacity, offsets)) return true;
    offsets.pop_back();
  }
  return false;
}

}  // namespace

TEST(the_search_is_right_about_every_capacity) {
  int above = 0;  // instances of which no placement has the live bytes
  for (unsigned seed = 0; seed < 1200; ++seed) {
    const Buffers buffers = dense_buffers(seed, 4 + seed % 5);
    std::vector<Extent> offsets;
    Extent least = max_load(buffers);
    while (!fits_somewhere(buffers, least, offsets)) ++least;
    above += least > max_load(buffers);
    for (Extent capacity = max_load(buffers); capacity <= least; ++capacity) {
      const Verdict verdict =
          ExactSearch(buffers, capacity).run(1'000'000'000, Stop{}, offsets);
      CHECK(verdict == (capacity < least ? Verdict::kTooHigh : Verdict::kFits));
    }
    Layout layout{offsets, 0};
    for (std::size_t i = 0; i < buffers.size(); ++i)
      layout.height = std::max(layout.height, offsets[i] + buffers[i].size);
    CHECK(legal(buffers, layout) && layout.height == least);
    const Packing packed = pack(buffers, 1'000'000'000);
    CHECK(packed.layout.height == least && packed.floor == least);
  }
  CHECK(above > 0);
}

TEST(a_search_ends_when_it_is_told_or_its_effort_is_spent) {
  const Buffers buffers = random_buffers(3, 200);
  std::vector<Extent> offsets{1};
  const Extent bound = max_load(buffers);
  CHECK(ExactSearch(buffers, bound).run(1, Stop{}, offsets) == Verdict::kUnknown);
  const Stop at_once{[](void* asked) { return ++*static_cast<int*>(asked) > 0; },
                     nullptr};
  int asked = 0;
  Stop stop = at_once;
  stop.whom = &asked;
  Buffers hard;  // 3 of 5 in a height of 14: no two fit beside a third
  for (int i = 0; i < 3; ++i) hard.push_back({0, 1, 5});
  CHECK(ExactSearch(hard, 14).run(1'000'000, stop, offsets) != Verdict::kFits);
  CHECK(offsets == std::vector<Extent>{1});  // as they were
}

TEST(the_sample_of_minimalloc_fits) {
  // The example of github.com/google/minimalloc, whose capacity is 12.
  const Buffers buffers{{0, 3, 4}, {3, 9, 4}, {0, 9, 4}, {9, 21, 4}, {0, 21, 4}};
  CHECK(pack(buffers, 10000).layout.height == 12);
}

namespace {

using memcfg::liveness::Index;
using memcfg::liveness::Phase;
using memcfg::liveness::Step;

// A chain of n forward ops and their reverses; sizes 1, costs 1.
Step chain(Index n) {
  Step step;
  const auto tensor = [&](Index producer, bool keep) {
    step.bytes.push_back(1);
    step.persistent.push_back(0);
    step.keep.push_back(keep);
    step.producer.push_back(producer);
    return static_cast<Index>(step.bytes.size() - 1);
  };
  const auto op = [&](Phase phase, std::vector<Index> inputs, Index output) {
    step.inputs.add(inputs);
    step.outputs.add({output});
    step.pairs.add({});
    step.scratch.push_back(0);
    step.phase.push_back(phase);
    step.cost.push_back(1.0);
    step.droppable.push_back(phase == Phase::kForward);
    step.repeatable.push_back(true);
    return static_cast<Index>(step.phase.size());
  };
  std::vector<Index> x{tensor(-1, false)};
  for (Index i = 0; i < n; ++i) {
    x.push_back(tensor(i, false));
    op(Phase::kForward, {x[static_cast<std::size_t>(i)]}, x.back());
  }
  Index gradient = x.back();
  for (Index i = n; i-- > 0;) {
    const Index below = tensor(static_cast<Index>(step.ops()), i == 0);
    op(Phase::kBackward, {x[static_cast<std::size_t>(i)], gradient}, below);
    gradient = below;
  }
  return step;
}

memcfg::schedule::Score scored(const Step& step, memcfg::recompute::Dropped& dropped) {
  return memcfg::schedule::score(step, memcfg::recompute::sequence(step, dropped));
}

}  // namespace

TEST(a_schedule_computes_ops_as_often_as_it_says) {
  const Step step = chain(3);
  const memcfg::liveness::Sequence often{0, 1, 2, 3, 0, 1, 4, 0, 5};
  CHECK(memcfg::schedule::find_fault(step, often).op == -1);
  const auto score = memcfg::schedule::score(step, often);
  CHECK(score.cost == 3.0 && score.replayed == 3);
  const auto placed =
      memcfg::schedule::lay_out(step, often, memcfg::liveness::InPlace::kEqual, 1000);
  CHECK(placed.lives.size() == often.size() + 1);
  CHECK(placed.packing.layout.height >= score.load);
  const auto fault = memcfg::schedule::find_fault(step, {0, 2});
  CHECK(fault.place == 1 && fault.op == 2 && fault.tensor == 2);
}

TEST(a_chain_without_recomputation_keeps_all) {
  const Step step = chain(10);
  memcfg::recompute::Dropped none(step.ops(), 0);
  const auto score = scored(step, none);
  CHECK(score.load == 12 && score.cost == 0.0 && score.replayed == 0);
}

TEST(uneven_segments_of_a_chain_shrink_with_its_root) {
  for (const Index n : {16, 64, 256}) {
    const Step step = chain(n);
    const auto forward = memcfg::recompute::make_forward(step);
    Extent least = n + 2;
    for (Extent budget = 1; budget <= n; ++budget) {
      bool found = false;
      const auto cuts = memcfg::recompute::uneven_cuts(forward, budget, found);
      if (!found) continue;
      auto dropped = memcfg::recompute::dropped_by(step, forward, cuts);
      const auto score = scored(step, dropped);
      CHECK(score.replayed < n);
      least = std::min(least, score.load);
    }
    // sqrt(2 n) checkpoints and segment, the input, two gradients.
    CHECK((least - 4) * (least - 4) <= 2 * n);
  }
}

TEST(an_op_that_reads_overwritten_state_is_kept) {
  Step step;
  // w, x -> f -> y; b(y) -> g; u(w, g) -> w'; c(y, w') -> z reads y after the update.
  for (const Index producer : {-1, -1, 0, 1, 2, 3}) {
    step.bytes.push_back(64);
    step.producer.push_back(producer);
    step.persistent.push_back(step.bytes.size() == 1);
    step.keep.push_back(step.bytes.size() > 4);
  }
  const std::vector<std::vector<Index>> inputs{{0, 1}, {1}, {0, 3}, {2, 4}};
  const Phase phases[] = {
      Phase::kForward, Phase::kBackward, Phase::kUpdate, Phase::kBackward};
  for (Index op = 0; op < 4; ++op) {
    step.inputs.add(inputs[static_cast<std::size_t>(op)]);
    step.outputs.add({op + 2});
    step.pairs.add(op == 2 ? std::vector<Index>{0, 4} : std::vector<Index>{});
    step.scratch.push_back(0);
    step.phase.push_back(phases[op]);
    step.cost.push_back(1.0);
    step.droppable.push_back(op == 0);
    step.repeatable.push_back(op == 0);
  }
  memcfg::recompute::Dropped dropped{1, 0, 0, 0};
  const auto score = scored(step, dropped);
  CHECK(score.replayed == 0 && dropped[0] == 0);
}
