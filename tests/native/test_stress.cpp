// Threads do everything that a pool allows, at random; between rounds the metadata are
// compared with those of the threads. MEMCFG_STRESS_SECONDS says for how long,
// MEMCFG_STRESS_SEED repeats a run as far as threads let it be repeated.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "check.hpp"
#include "memcfg/arena.hpp"
#include "memcfg/system_resource.hpp"
#include "pools.hpp"
#include "threading.hpp"

using memcfg::Arena;
using memcfg::bad_free;
using namespace pools;
using namespace threading;

namespace {

constexpr int kThreads = 3;
constexpr int kSteps = 400;  // of each thread in a round

unsigned number_from(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::atol(text));
}

// For a quarter of the time.
bool time_left(std::chrono::steady_clock::time_point start) {
  static const unsigned seconds = number_from("MEMCFG_STRESS_SECONDS", 16);
  return std::chrono::steady_clock::now() - start < std::chrono::seconds(seconds) / 4;
}

unsigned seed_of_run() {
  const unsigned seed = number_from("MEMCFG_STRESS_SEED", std::random_device()());
  std::printf("MEMCFG_STRESS_SEED=%u\n", seed);
  std::fflush(stdout);
  return seed;
}

struct Held {
  void* address;
  Bytes size;
  std::string tag;
  unsigned char pattern;
};

// Every byte of a small block, the ends of a large one.
template <typename Act>
void each_part(const Held& held, Act act) {
  constexpr Bytes kEnd = 512;
  auto* const first = static_cast<unsigned char*>(held.address);
  if (held.size <= 2 * kEnd) return act(first, held.size);
  act(first, kEnd);
  act(first + held.size - kEnd, kEnd);
}

// Blocks on their way from one thread to another.
class Shelf {
 public:
  void put(Held held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_.push_back(std::move(held));
  }
  bool take(Held& held, std::size_t pick) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (rows_.empty()) return false;
    std::swap(rows_[pick % rows_.size()], rows_.back());
    held = std::move(rows_.back());
    rows_.pop_back();
    return true;
  }
  const std::vector<Held>& rows() const { return rows_; }  // while nobody is at work

 private:
  std::mutex mutex_;
  std::vector<Held> rows_;
};

class Worker {
 public:
  Worker(std::shared_ptr<Pool> pool, Shelf& shelf, unsigned seed)
      : pool_(std::move(pool)), shelf_(shelf), random_(seed) {}

  void work() {
    for (int step = 0; step < kSteps; ++step) {
      try {
        do_something();
      } catch (const std::bad_alloc&) {  // refused
        if (any(4)) give_some();
      }
    }
  }

  void clear() {
    while (!held_.empty()) give();
    Held held;
    while (shelf_.take(held, 0)) give(held);
    arena_.reset();
  }

  // What this worker has, by tag.
  void count(std::map<std::string, Bytes>& owners, Bytes& requested) const {
    for (const Held& held : held_) {
      owners[held.tag] += align_up(held.size);
      requested += held.size;
    }
    if (arena_ == nullptr || arena_->size() == 0) return;
    owners["arena"] += arena_->size();
    requested += arena_requested_;
  }

 private:
  Bytes any(Bytes count) { return random_() % count; }

  void do_something() {
    switch (any(40)) {
      case 0:
        return give_some();
      case 1:
        pool_->trim(any(4 * kMiB));
        return;
      case 2:
        pool_->decay();
        return;
      case 3:
        return look();
      case 4:
      case 5:
        return grow();
      case 6:
        return shrink();
      case 7:
      case 8:
        return swap();
      case 9:
        return free_wrongly();
      case 10:
      case 11:
      case 12:
      case 13:
        return resize();
      default:
        return held_.size() < 40 && any(3) > 0 ? take() : give();
    }
  }

  Bytes random_size() {
    const Bytes kind = any(20);
    if (kind == 0) return 1 + any(3 * kMiB);
    if (kind < 3) return 1 + any(200 * kKiB);
    return 1 + any(kind < 10 ? 300 : 8000);
  }

  void take() {
    Held held;
    held.size = random_size();
    held.tag = std::string(any(4), 'x');
    if (any(50) == 0) held.tag = "tag " + std::to_string(any(100000));
    held.pattern = static_cast<unsigned char>(random_());
    const Bytes alignment = any(10) == 0 ? Bytes{64} << any(16) : 64;
    held_.reserve(held_.size() + 1);
    const bool zeroed = any(5) == 0;
    held.address = pool_->allocate(
        {held.size, alignment, static_cast<Lifetime>(any(3)), held.tag, zeroed});
    CHECK(pools::number(held.address) % alignment == 0);
    if (pool_->touchable() && zeroed) {
      const auto* const bytes = static_cast<const unsigned char*>(held.address);
      CHECK(bytes[0] == 0 && std::memcmp(bytes, bytes + 1, held.size - 1) == 0);
    }
    write(held);
    held_.push_back(std::move(held));
  }
  void write(const Held& held) {
    if (!pool_->touchable()) return;
    each_part(held, [&](unsigned char* place, Bytes size) {
      std::memset(place, held.pattern, size);
    });
  }
  void read(const Held& held) {
    if (!pool_->touchable()) return;
    each_part(held, [&](const unsigned char* place, Bytes size) {
      for (Bytes i = 0; i < size; ++i) CHECK(place[i] == held.pattern);
    });
  }

  // What both sizes have is as it was.
  void resize() {
    if (held_.empty()) return;
    Held& held = held_[any(held_.size())];
    const Bytes size = held.size;
    const Bytes now = any(2) == 0 ? 1 + any(2 * size) : random_size();
    if (!pool_->resize(held.address, size, now)) return read(held);
    held.size = std::min(size, now);
    if (pool_->touchable()) {
      const auto* const bytes = static_cast<const unsigned char*>(held.address);
      const Bytes low = std::min<Bytes>(held.size, 512);
      for (Bytes i = 0; i < low; ++i) CHECK(bytes[i] == held.pattern);
      if (now >= size) read(held);
    }
    held.size = now;
    held.pattern = static_cast<unsigned char>(random_());
    write(held);
  }

  void give() {
    if (held_.empty()) return;
    std::swap(held_[any(held_.size())], held_.back());
    const Held held = std::move(held_.back());
    held_.pop_back();
    give(held);
  }
  void give(const Held& held) {
    read(held);
    CHECK(pool_->size_of(held.address) == held.size);
    pool_->deallocate(held.address, held.size);
  }
  void give_some() {
    for (Bytes left = any(held_.size() + 1); left > 0; --left) give();
  }

  void swap() {
    Held held;
    if (any(2) == 0 && !held_.empty()) {
      shelf_.put(std::move(held_.back()));
      held_.pop_back();
    } else if (shelf_.take(held, any(1000))) {
      any(2) == 0 ? give(held) : held_.push_back(std::move(held));
    }
  }

  // A block of one's own: nobody else may have it meanwhile.
  void free_wrongly() {
    if (held_.empty()) return;
    const Held& held = held_[any(held_.size())];
    CHECK_THROWS(bad_free, pool_->deallocate(held.address, held.size + 1 + any(100)));
    CHECK_THROWS(bad_free, pool_->resize(held.address, held.size + 1 + any(100), 1));
    if (held.size == 1) return;
    auto* const inside = static_cast<std::byte*>(held.address) + 1 + any(held.size - 1);
    CHECK_THROWS(bad_free, pool_->deallocate(inside, held.size));
    CHECK_THROWS(bad_free, pool_->resize(inside, held.size, 2 * held.size));
  }

  void look() {
    switch (any(5)) {
      case 0:
        return check_busy_pool(*pool_);
      case 3:
        return find_own();
      case 1:
        return pool_->reset_peak();
      case 2:
        pool_->layout();
        return;
      default:
        pool_->owners();
    }
  }

  // One's own blocks are among those that are out, whatever the others do.
  void find_own() {
    const std::vector<memcfg::LiveBlock> rows = pool_->blocks();
    for (const Held& held : held_) {
      const auto row = std::lower_bound(
          rows.begin(), rows.end(), held, [](const auto& each, const Held& own) {
            return each.address < pools::number(own.address);
          });
      CHECK(row != rows.end() && row->address == pools::number(held.address));
      CHECK(row->requested == held.size && row->tag == held.tag);
    }
  }

  // The bytes of an arena are zero at first, and then what was written.
  void grow() {
    if (!pool_->touchable() || pool_->system().whole_blocks()) return;
    if (arena_ == nullptr) arena_ = std::make_unique<Arena>(pool_, 32 * kMiB, "arena");
    const Bytes before = arena_->size();
    const Bytes wanted = before + any(kMiB);
    arena_->grow(wanted);
    if (wanted > before) arena_requested_ = wanted;
    for (Bytes i = before; i < arena_->size(); i += 64) {
      CHECK(arena_->base()[i] == std::byte{0});
      arena_->base()[i] = std::byte{7};
    }
  }
  void shrink() {
    if (arena_ == nullptr) return;
    const Bytes wanted = any(arena_->size() + 1);
    arena_->shrink(wanted);
    arena_requested_ = std::min(arena_requested_, wanted);
    arena_->check();
    for (Bytes i = 0; i < arena_->size(); i += 64) {
      CHECK(arena_->base()[i] == std::byte{7});
    }
  }

  std::shared_ptr<Pool> pool_;
  Shelf& shelf_;
  std::mt19937 random_;
  std::vector<Held> held_;
  std::unique_ptr<Arena> arena_;
  Bytes arena_requested_ = 0;
};

// One pool, its workers, and rounds of work.
class Stress {
 public:
  Stress(std::shared_ptr<Pool> pool, unsigned seed)
      : pool_(std::move(pool)), max_(pool_->limit()), random_(seed) {
    for (int i = 0; i < kThreads; ++i) {
      workers_.push_back(
          std::make_unique<Worker>(pool_, shelf_, static_cast<unsigned>(random_())));
    }
  }

  void round() {
    Threads threads;
    for (const auto& worker : workers_) threads.start([&] { worker->work(); });
    while (threads.at_work()) {
      if (max_ != kNoLimit) move_limit();
      check_busy_pool(*pool_);
      std::this_thread::yield();
    }
    threads.finish();
    compare();
  }

  // Post: nothing is left, and all of the limit can be had.
  void finish() {
    for (const auto& worker : workers_) worker->clear();
    compare();
    CHECK(pool_->stats().current == 0 && pool_->owners().empty());
    CHECK(pool_->trim(0) == 0 || pool_->stats().reserved == 0);
    CHECK(pool_->stats().reserved == 0);
  }

 private:
  void move_limit() {
    try {
      pool_->set_limit(random_() % 3 == 0 ? max_ : 1 + random_() % max_);
    } catch (const out_of_memory&) {
    }
  }

  void compare() {
    std::map<std::string, Bytes> owners;
    Bytes requested = 0;
    for (const auto& worker : workers_) worker->count(owners, requested);
    for (const Held& held : shelf_.rows()) {
      owners[held.tag] += align_up(held.size);
      requested += held.size;
    }
    CHECK(pool_->owners() == memcfg::Owners(owners.begin(), owners.end()));
    CHECK(pool_->stats().requested == requested);
    check_pool(*pool_);
    check_layout(*pool_);
  }

  const std::shared_ptr<Pool> pool_;
  const Bytes max_;
  std::mt19937 random_;
  Shelf shelf_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// `each_round` is called between rounds.
template <typename EachRound>
void run(const std::shared_ptr<Pool>& pool, EachRound each_round) {
  const unsigned seed = seed_of_run();
  const auto start = std::chrono::steady_clock::now();
  Stress stress(pool, seed);
  int rounds = 0;
  for (; time_left(start); ++rounds) {
    stress.round();
    each_round();
  }
  stress.finish();
  std::printf("%d rounds\n", rounds);
}

}  // namespace

TEST(a_pool_under_a_limit) {
  const Faulty system;
  {
    const auto pool = make_pool(64 * kMiB, system);
    run(pool, [&] {
      CHECK(system.open + system.guarded == pool->stats().reserved);
      CHECK(system.most <= 64 * kMiB + system.page_size());
    });
  }
  CHECK(system.has_all_back());
}

// Pages of another size, few of them; the system refuses now and then.
TEST(a_pool_of_large_pages_on_a_system_that_refuses) {
  const Faulty system(64 * kKiB);
  {
    const auto pool = make_pool(12 * kMiB, system);
    std::mt19937 random(1);
    run(pool, [&] {
      CHECK(system.open + system.guarded == pool->stats().reserved);
      CHECK(system.most <= 12 * kMiB + system.page_size());
      system.once = random() % 2 == 0;
      system.calls_left = random() % 4 == 0 ? Faulty::kMany : int(random() % 500);
    });
    system.calls_left = Faulty::kMany;
  }
  CHECK(system.has_all_back());
}

TEST(a_pool_on_a_pool) {
  const Faulty system;
  {
    const auto below = make_pool(48 * kMiB, system);
    const auto top = std::make_shared<Pool>("top", 64 * kMiB, true, below);
    run(top, [&] {
      check_pool(*below);
      CHECK(below->stats().current == top->stats().reserved);
    });
  }
  CHECK(system.has_all_back());
}

TEST(a_pool_without_a_limit_on_a_simulated_device) {
  const auto device = std::make_shared<memcfg::SimulatedResource>("gpu", 48 * kMiB);
  {
    const auto pool = std::make_shared<Pool>("gpu", kNoLimit, true, device);
    run(pool, [&] { CHECK(device->stats().reserved == pool->stats().reserved); });
  }
  CHECK(device->stats().reserved == 0);
  device->check();
}
