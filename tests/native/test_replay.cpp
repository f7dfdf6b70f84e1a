// Replays: figures against a model, and resources that end as they began.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "memcfg/replay.hpp"
#include "memcfg/tracking.hpp"
#include "pools.hpp"
#include "stacks.hpp"

using memcfg::Bytes;
using memcfg::History;
using memcfg::kNoLimit;
using memcfg::Replay;
using memcfg::ReplayFigures;
using memcfg::ReplayPlan;
using memcfg::Request;
using memcfg::Resource;
using pools::kMiB;
using stacks::Shared;

namespace {

struct Record {
  std::vector<std::uint8_t> action;
  std::vector<std::uint64_t> address;
  std::vector<std::uint64_t> size;
  std::vector<std::int32_t> tag;
  std::vector<std::string> tags{"", "a", "b"};

  void add(std::uint8_t what, std::uint64_t where, std::uint64_t bytes, int who = 0) {
    action.push_back(what);
    address.push_back(where);
    size.push_back(bytes);
    tag.push_back(who);
  }
  std::shared_ptr<const ReplayPlan> plan() const {
    return std::make_shared<const ReplayPlan>(
        ReplayPlan::Columns{
            action.data(), address.data(), size.data(), tag.data(), action.size()},
        tags);
  }
};

Record random_record(unsigned seed, std::size_t rows, Bytes most) {
  std::mt19937 random(seed);
  Record record;
  std::vector<std::pair<std::uint64_t, Bytes>> out;
  std::uint64_t places = 64;
  std::vector<std::uint64_t> spare;
  while (record.action.size() < rows) {
    const int who = static_cast<int>(random() % 3);
    if (random() % 16 == 0) {
      record.add(History::failure, 0, 1 + random() % most, who);
    } else if (out.empty() || random() % 5 < 3) {
      if (spare.empty()) spare.push_back(places += 64);
      out.emplace_back(spare.back(), 1 + random() % most);
      spare.pop_back();  // addresses come back, as those of an allocator do
      record.add(History::allocate, out.back().first, out.back().second, who);
    } else {
      std::swap(out[random() % out.size()], out.back());
      record.add(History::free, out.back().first, out.back().second, who);
      spare.push_back(out.back().first);
      out.pop_back();
    }
  }
  return record;
}

// What a replay must say where a request is refused when it does not fit the limit.
ReplayFigures expected(const Record& record, Bytes limit) {
  ReplayFigures wanted;
  std::map<std::uint64_t, std::optional<Bytes>> out;  // nothing: it was refused
  Bytes in_use = 0;
  Bytes requested = 0;
  for (std::size_t row = 0; row < record.action.size(); ++row) {
    const Bytes size = record.size[row];
    if (record.action[row] == History::allocate) {
      if (in_use + memcfg::align_up(size) > limit) {
        if (wanted.failures++ == 0) {
          wanted.first_failure = row;
          wanted.use_at_failure =
              static_cast<double>(requested) / static_cast<double>(limit);
        }
        out[record.address[row]].reset();
        continue;
      }
      out[record.address[row]] = size;
      in_use += memcfg::align_up(size);
      requested += size;
    } else if (record.action[row] == History::free) {
      const auto found = out.find(record.address[row]);
      if (found->second) {
        in_use -= memcfg::align_up(size);
        requested -= size;
      } else {
        ++wanted.skipped;
      }
      out.erase(found);
    }
    wanted.peak_in_use = std::max(wanted.peak_in_use, in_use);
    wanted.peak_requested = std::max(wanted.peak_requested, requested);
  }
  for (const auto& row : out) {
    if (!row.second) continue;
    ++wanted.left;
    wanted.left_size += *row.second;
  }
  return wanted;
}

void require_same(const ReplayFigures& found, const ReplayFigures& wanted) {
  CHECK(found.failures == wanted.failures);
  CHECK(found.first_failure == wanted.first_failure);
  CHECK(found.use_at_failure == wanted.use_at_failure);
  CHECK(found.skipped == wanted.skipped);
  CHECK(found.left == wanted.left && found.left_size == wanted.left_size);
  CHECK(found.peak_in_use == wanted.peak_in_use);
  CHECK(found.peak_requested == wanted.peak_requested);
}

ReplayFigures play(const Record& record, const Shared& resource, bool touch = false) {
  Replay replay(record.plan(), resource, touch);
  while (replay.advance(7)) continue;
  replay.finish();
  const ReplayFigures figures = replay.figures();
  std::size_t played = replay.nanoseconds().size();
  for (const std::uint8_t action : record.action) {
    if (action != History::failure) --played;
  }
  CHECK(played + figures.skipped == 0);
  return figures;
}

// Refuses to say why, from the n-th request on.
class Broken final : public Resource {
 public:
  Broken(Shared below, int good) : below_(std::move(below)), good_(good) {}
  const std::string& name() const noexcept override { return below_->name(); }
  memcfg::SpaceKind kind() const noexcept override { return below_->kind(); }
  void* allocate(const Request& request) override {
    if (good_-- <= 0) throw std::runtime_error("broken");
    return below_->allocate(request);
  }
  void deallocate(void* address, Bytes size) override {
    below_->deallocate(address, size);
  }
  Bytes size_of(const void* address) const override { return below_->size_of(address); }
  std::vector<memcfg::LiveBlock> blocks() const override { return below_->blocks(); }
  memcfg::ResourceStats stats() const override { return below_->stats(); }
  void reset_peak() override {}
  memcfg::Owners owners() const override { return below_->owners(); }
  Bytes trim(Bytes keep) override { return below_->trim(keep); }
  void check() const override { below_->check(); }

 private:
  const Shared below_;
  int good_;
};

}  // namespace

TEST(figures_are_those_of_a_model) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Faulty system;
    const Record record = random_record(seed, 400, 20000);
    for (const Bytes limit : {kNoLimit - 64, 200 * Bytes{1000}, 50 * Bytes{1000}}) {
      const Shared resource =
          std::make_shared<memcfg::LimitingResource>(stacks::blocks_of(system), limit);
      require_same(play(record, resource), expected(record, limit));
      CHECK(resource->stats().current == 0);
      resource->check();
    }
  }
}

TEST(any_resource_plays_a_record_and_ends_as_it_began) {
  const Record record = random_record(3, 2000, kMiB / 8);
  const ReplayFigures wanted = expected(record, kNoLimit - 64);
  for (const stacks::Case& one : stacks::kCases) {
    const Faulty system;
    const Shared resource = one.make(system);
    void* const others =
        resource->allocate({100, 64, memcfg::Lifetime::unknown, "others"});
    for (int round = 0; round < 2; ++round) {
      const ReplayFigures figures = play(record, resource, resource->touchable());
      require_same(figures, wanted);
      CHECK(figures.peak_reserved >= figures.peak_in_use);
      CHECK(resource->stats().current == 128);
      CHECK(resource->owners() == memcfg::Owners({{"others", 128}}));
      resource->check();
    }
    resource->deallocate(others, 100);
  }
}

TEST(blocks_have_the_tags_of_the_record) {
  const Faulty system;
  const Shared resource = stacks::counted(stacks::blocks_of(system));
  Record record;
  record.add(History::allocate, 1, 100, 1);
  record.add(History::allocate, 2, 200, 2);
  Replay replay(record.plan(), resource, false);
  CHECK(!replay.advance(5));
  CHECK(resource->owners() == memcfg::Owners({{"a", 128}, {"b", 256}}));
  replay.finish();
  CHECK(resource->owners().empty());
}

TEST(reserved_memory_is_read_where_it_is_highest) {
  const Faulty system;
  Record record;
  for (int i = 0; i < 10; ++i) record.add(History::allocate, 64U + i, 1000);
  for (int i = 0; i < 10; ++i) record.add(History::free, 64U + i, 1000);
  const Shared resource = stacks::blocks_of(system);
  CHECK(play(record, resource).peak_reserved == 10240);
  CHECK(play(record, resource).peak_reserved == 10240);  // no new peak of its own
  resource->deallocate(resource->allocate({kMiB}), kMiB);
  CHECK(play(record, resource).peak_reserved == 10240);  // and what was before is past
}

TEST(a_resource_that_throws_has_all_blocks_back) {
  const Record record = random_record(5, 300, 5000);
  for (int good = 0; good < 100; good += 9) {
    const Faulty system;
    const Shared below = stacks::blocks_of(system);
    {
      Replay replay(record.plan(), std::make_shared<Broken>(below, good), false);
      CHECK_THROWS(std::runtime_error, replay.advance(1000));
    }
    CHECK(below->stats().current == 0);
    {
      Replay replay(record.plan(), below, false);  // and one that is given up
      replay.advance(static_cast<std::size_t>(good));
    }
    CHECK(below->stats().current == 0);
  }
}

TEST(a_block_that_somebody_else_freed_is_told) {
  const Faulty system;
  const Shared resource = stacks::blocks_of(system);
  Record record;
  for (int i = 0; i < 3; ++i) record.add(History::allocate, 64U + i, 1000);
  Replay replay(record.plan(), resource, false);
  CHECK(!replay.advance(3));
  const auto victim = reinterpret_cast<void*>(resource->blocks()[1].address);
  resource->deallocate(victim, 1000);
  CHECK_THROWS(memcfg::bad_free, replay.finish());
  CHECK(resource->stats().current == 0);
}

TEST(records_that_are_none) {
  const auto refused = [](auto change) {
    Record record;
    record.add(History::allocate, 64, 100);
    record.add(History::allocate, 128, 100);
    change(record);
    try {
      record.plan();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused([](Record&) {}).empty());
  CHECK(refused([](Record& r) { r.add(History::free, 64, 100); }).empty());
  CHECK(refused([](Record& r) { r.add(History::free, 65, 100); }).find("row 2") == 0);
  CHECK(refused([](Record& r) { r.add(History::allocate, 64, 1); }).find("row 2") == 0);
  for (const int tag : {-1, 3}) {
    CHECK(refused([&](Record& r) { r.add(History::failure, 0, 1, tag); }).find("row") ==
          0);
  }
}

TEST(a_plan_has_a_slot_for_each_block_that_is_out_at_a_time) {
  Record record;
  for (int i = 0; i < 10; ++i) {
    record.add(History::allocate, 64U + i, 100);
    if (i >= 3) record.add(History::free, 64U + i, 100);
  }
  CHECK(record.plan()->slots() == 4 && record.plan()->steps().size() == 17);
}

TEST(memory_is_touched_where_there_is_some) {
  const Record record = random_record(1, 10, 100);
  CHECK_THROWS(std::invalid_argument, Replay(record.plan(), stacks::simulated(), true));
  Record large;
  large.add(History::allocate, 64, 64 * kMiB);
  const auto resident = [&](bool touch) {
    const auto pool = pools::make_pool(kNoLimit);
    Replay replay(large.plan(), pool, touch);
    const Bytes before = memcfg::resident_size();
    replay.advance(1);
    const Bytes now = memcfg::resident_size();
    return now - std::min(now, before);
  };
  if (pools::kThreadSanitizer) return;  // its own memory grows
  CHECK(resident(false) < 8 * kMiB);
  CHECK(resident(true) > 56 * kMiB);
}

TEST(nothing_to_play) {
  const Faulty system;
  const Shared resource = stacks::blocks_of(system);
  require_same(play(Record(), resource), ReplayFigures());
  Record record;
  record.add(History::failure, 0, 100);
  require_same(play(record, resource), ReplayFigures());
}
