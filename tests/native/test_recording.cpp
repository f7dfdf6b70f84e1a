// What tracking and logging note, against models and an independent reader.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "children.hpp"
#include "fork_safe_new.hpp"
#include "memcfg/logging.hpp"
#include "memcfg/replay.hpp"
#include "memcfg/tracking.hpp"
#include "pools.hpp"
#include "stacks.hpp"
#include "threading.hpp"

using memcfg::Bytes;
using memcfg::Frame;
using memcfg::History;
using memcfg::Lifetime;
using memcfg::LoggingResource;
using memcfg::ReplayPlan;
using memcfg::Request;
using memcfg::TrackingResource;
using pools::kMiB;
using pools::number;
using stacks::Shared;
using threading::Threads;

namespace {

Request named(Bytes size, const char* tag) {
  return {size, 64, Lifetime::unknown, tag};
}

// Throws unless every block is taken before it is freed, once.
void require_playable(const History& history) {
  ReplayPlan({history.action.data(),
              history.address.data(),
              history.size.data(),
              history.tag.data(),
              history.action.size()},
             history.tags);
}

struct Row {
  int action;
  std::uint64_t address;
  std::uint64_t size;
  std::string tag;
  bool operator==(const Row& other) const {
    return action == other.action && address == other.address && size == other.size &&
           tag == other.tag;
  }
};

std::vector<Row> rows_of(const History& history) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < history.action.size(); ++i) {
    rows.push_back({history.action[i],
                    history.address[i],
                    history.size[i],
                    history.tags[static_cast<std::size_t>(history.tag[i])]});
  }
  return rows;
}

// Takes, frees, resizes and is refused at random; knows what must be remembered of it.
class Story {
 public:
  Story(TrackingResource& tracked, std::size_t most) : tracked_(tracked), max_(most) {}

  void step(std::mt19937& random) {
    const std::string tag(random() % 5, 't');
    if (out_.empty() || random() % 8 < 3) {
      const Bytes size = 1 + random() % 5000;
      void* const address = tracked_.allocate(named(size, tag.c_str()));
      note({History::allocate, number(address), size, tag});
      return;
    }
    const auto block =
        std::next(out_.begin(), static_cast<std::ptrdiff_t>(random() % out_.size()));
    const Row row = block->second;
    void* const address = reinterpret_cast<void*>(row.address);
    const Bytes now = 1 + random() % row.size;
    if (random() % 4 == 0) {
      if (tracked_.resize(address, row.size, now) && now != row.size) {
        note({History::free, row.address, row.size, row.tag});
        note({History::allocate, row.address, now, row.tag});
      }
    } else if (random() % 8 == 0) {
      CHECK_THROWS(memcfg::out_of_memory, tracked_.allocate({Bytes{1} << 60}));
      note({History::failure, 0, Bytes{1} << 60, ""});
    } else {
      tracked_.deallocate(address, row.size);
      note({History::free, row.address, row.size, row.tag});
    }
  }

  void clear() {
    tracked_.clear();
    dropped_ = 0;
    before_ = taken_;
    rows_.clear();
  }

  void compare() const {
    std::vector<Row> expected = before_;
    expected.insert(expected.end(), rows_.begin(), rows_.end());
    const History history = tracked_.history();
    CHECK(rows_of(history) == expected);
    CHECK(history.dropped == dropped_ && tracked_.dropped() == dropped_);
    CHECK(std::is_sorted(history.seconds.begin(), history.seconds.end()));
    require_playable(history);
    tracked_.check();
  }

  void end() {
    while (!out_.empty()) {
      const Row row = out_.begin()->second;
      tracked_.deallocate(reinterpret_cast<void*>(row.address), row.size);
      note({History::free, row.address, row.size, row.tag});
    }
  }

 private:
  void note(const Row& row) {
    rows_.push_back(row);
    change(taken_, row);
    if (row.action == History::allocate) out_[row.address] = row;
    if (row.action == History::free) out_.erase(row.address);
    if (rows_.size() <= max_) return;
    change(before_, rows_.front());  // what is too old is known by what it left
    rows_.erase(rows_.begin());
    ++dropped_;
  }

  static void change(std::vector<Row>& taken, const Row& row) {
    if (row.action == History::allocate) taken.push_back(row);
    if (row.action != History::free) return;
    taken.erase(std::find_if(taken.begin(), taken.end(), [&](const Row& each) {
      return each.address == row.address;
    }));
  }

  TrackingResource& tracked_;
  const std::size_t max_;
  std::map<std::uint64_t, Row> out_;
  std::vector<Row> rows_;
  std::vector<Row> taken_;   // blocks that are out, in the order they were taken
  std::vector<Row> before_;  // those that were when the oldest row happened
  std::uint64_t dropped_ = 0;
};

// How many stacks are in the metadata, whoever has them.
std::size_t stack_count(TrackingResource& tracked) {
  std::vector<memcfg::LiveBlock> every(1000);
  for (std::size_t i = 0; i < every.size(); ++i) {
    every[i].stack = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> numbers;
  const std::size_t count = tracked.stacks(every, numbers).size();
  CHECK(numbers.size() == count);
  return count;
}

// A program in three functions, whose code must be alive while it is in the metadata.
class Program {
 public:
  TrackingResource::Source source() {
    return [this](TrackingResource& tracked) -> memcfg::Stacks::Held {
      if (depth_ == 0) return nullptr;
      std::vector<Frame> frames;
      for (int i = depth_; i > 0; --i) frames.push_back({&code_[i], i});
      const auto taken = tracked.take_stack(frames.data(), frames.size());
      if (taken.fresh) keep(frames, 1);
      for (const auto& row : taken.retired) keep(row.first, -1);
      return taken.stack;
    };
  }
  void keep(const memcfg::Stack& frames, int change) {
    for (const Frame& frame : frames) kept_[frame.code] += change;
  }
  int kept() const {
    int sum = 0;
    for (const auto& row : kept_) {
      CHECK(row.second >= 0);
      sum += row.second;
    }
    return sum;
  }
  int depth_ = 0;

 private:
  char code_[10] = {};
  std::map<const void*, int> kept_;
};

// A file without a name.
class File {
 public:
  File() : file_(std::tmpfile()) { CHECK(file_ != nullptr); }
  ~File() { std::fclose(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int open() const { return dup(fileno(file_)); }  // shares the place in the file
  std::string text() const {
    std::string all;
    char part[4096];
    for (off_t place = 0;;) {
      const ssize_t count = pread(fileno(file_), part, sizeof part, place);
      CHECK(count >= 0);
      if (count == 0) return all;
      all.append(part, static_cast<std::size_t>(count));
      place += count;
    }
  }

 private:
  std::FILE* const file_;
};

struct LogRow {
  unsigned long long thread;
  double seconds;  // of the day
  std::string action;
  unsigned long long address;
  unsigned long long size;
};

// Reads a log with the C library's scanner; every line must be whole.
std::vector<LogRow> read_log(const std::string& text) {
  std::vector<std::string> lines;
  std::string line;
  for (const char letter : text) {
    if (letter == '\n') lines.push_back(std::exchange(line, {}));
    if (letter != '\n') line += letter;
  }
  CHECK(line.empty() && !lines.empty());
  CHECK(lines[0] == "Thread,Time,Action,Pointer,Size,Stream");
  std::vector<LogRow> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    LogRow row{};
    char action[32] = {};
    int hours = 0;
    int minutes = 0;
    int seconds = 0;
    int micros = 0;
    int end = 0;
    const int read = std::sscanf(lines[i].c_str(),
                                 "%llu,%2d:%2d:%2d.%6d,%31[a-z ],0x%llx,%llu,0%n",
                                 &row.thread,
                                 &hours,
                                 &minutes,
                                 &seconds,
                                 &micros,
                                 action,
                                 &row.address,
                                 &row.size,
                                 &end);
    CHECK(read == 8 && end == static_cast<int>(lines[i].size()));
    CHECK(hours < 24 && minutes < 60 && seconds < 60);
    row.seconds = hours * 3600 + minutes * 60 + seconds + micros * 1e-6;
    row.action = action;
    rows.push_back(row);
  }
  return rows;
}

std::size_t count(const std::vector<LogRow>& rows, const char* action) {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [&](const LogRow& row) {
        return row.action == action;
      }));
}

}  // namespace

TEST(a_history_tells_what_happened) {
  const Faulty system;
  TrackingResource tracked(stacks::pool_of(system, kMiB), 100);
  void* const first = tracked.allocate(named(100, "a"));
  void* const second = tracked.allocate(named(5000, ""));
  CHECK_THROWS(memcfg::out_of_memory, tracked.allocate(named(2 * kMiB, "b")));
  CHECK_THROWS(std::invalid_argument, tracked.allocate({0}));
  CHECK_THROWS(memcfg::bad_free, tracked.deallocate(second, 1));
  CHECK(tracked.resize(second, 5000, 4500));
  tracked.deallocate(first, 100);
  const History history = tracked.history();
  CHECK(rows_of(history) ==
        std::vector<Row>({{History::allocate, number(first), 100, "a"},
                          {History::allocate, number(second), 5000, ""},
                          {History::failure, 0, 2 * kMiB, "b"},
                          {History::free, number(second), 5000, ""},
                          {History::allocate, number(second), 4500, ""},
                          {History::free, number(first), 100, "a"}}));
  CHECK(history.dropped == 0 && history.stacks.empty());
  for (const std::int64_t thread : history.thread) CHECK(thread == memcfg::thread_id());
  CHECK(std::is_sorted(history.seconds.begin(), history.seconds.end()));
  require_playable(history);
  const auto blocks = tracked.blocks();
  CHECK(blocks.size() == 1 && blocks[0].thread == memcfg::thread_id());
  CHECK(blocks[0].seconds >= 0 && blocks[0].seconds < 600 && blocks[0].stack == -1);
  tracked.deallocate(second, 4500);
}

TEST(a_history_is_that_of_a_model) {
  for (const std::size_t most : {1U, 2U, 7U, 100U, 5000U}) {
    const Faulty system;
    TrackingResource tracked(stacks::pool_of(system, 64 * kMiB), most);
    Story story(tracked, most);
    std::mt19937 random(static_cast<unsigned>(most));
    for (int step = 0; step < 3000; ++step) {
      story.step(random);
      if (random() % 200 == 0) story.clear();
      if (step % 50 == 0) story.compare();
    }
    story.compare();
    story.end();
    story.compare();
    CHECK(tracked.stats().current == 0);
  }
}

TEST(a_history_is_bounded) {
  const Faulty system;
  const Shared pool = stacks::pool_of(system, kMiB);
  CHECK_THROWS(std::invalid_argument, TrackingResource(pool, 0));
  CHECK_THROWS(std::bad_alloc, TrackingResource(pool, memcfg::kNoLimit));
  CHECK_THROWS(std::bad_alloc, TrackingResource(pool, memcfg::kNoLimit / 64));
  CHECK_THROWS(std::invalid_argument, TrackingResource(nullptr, 1));
  TrackingResource large(pool, std::size_t{1} << 30);  // addresses cost nothing
  for (int i = 0; i < 100; ++i) large.deallocate(large.allocate({64}), 64);
  const Bytes own = large.stats().metadata - pool->stats().metadata;
  CHECK(200 * 56 <= own && own <= 200 * 128);
}

// A name is forgotten with the last event that has it.
TEST(names_do_not_pile_up) {
  const Faulty system;
  const Shared pool = stacks::pool_of(system, kMiB);
  TrackingResource tracked(pool, 10);
  for (int i = 0; i < 1000; ++i) {
    const std::string tag = "tag " + std::to_string(i);
    tracked.deallocate(tracked.allocate(named(64, tag.c_str())), 64);
    CHECK(tracked.history().tags.size() <= 6);
  }
  CHECK(tracked.stats().metadata - pool->stats().metadata < 10000);
  tracked.check();
}

TEST(a_block_that_went_behind_is_freed_in_the_history) {
  const Faulty system;
  const Shared below = stacks::blocks_of(system);
  TrackingResource tracked(below, 10);
  void* const block = tracked.allocate({64});
  below->deallocate(block, 64);
  void* const again = tracked.allocate({64});
  require_playable(tracked.history());
  tracked.deallocate(again, 64);
  tracked.check();
  if (again == block) CHECK(tracked.history().action.size() == 4);
}

TEST(code_is_kept_as_long_as_a_stack_is_in_the_metadata) {
  const Faulty system;
  Program program;
  TrackingResource tracked(stacks::pool_of(system, kMiB), 4, program.source());
  void* const none = tracked.allocate({64});
  program.depth_ = 2;
  void* const first = tracked.allocate({64});
  void* const second = tracked.allocate({64});
  CHECK(program.kept() == 2);  // one stack of two calls
  program.depth_ = 3;
  CHECK_THROWS(memcfg::out_of_memory, tracked.allocate({2 * kMiB}));
  CHECK(program.kept() == 5);
  tracked.check();
  const auto blocks = tracked.blocks();
  CHECK(std::count_if(blocks.begin(), blocks.end(), [](const auto& block) {
          return block.stack == -1;
        }) == 1);
  History history = tracked.history();
  CHECK(history.stacks.size() == 2 && history.stacks[0].size() == 2);
  CHECK(history.stack == std::vector<std::int32_t>({-1, 0, 0, 1}));
  for (void* address : {none, first, second}) tracked.deallocate(address, 64);
  history = tracked.history();  // three blocks from before, and four events
  CHECK(history.stack == std::vector<std::int32_t>({-1, 0, 0, 1, -1, 0, 0}));
  tracked.clear();
  CHECK(tracked.history().stacks.empty() && stack_count(tracked) == 0);
  program.depth_ = 1;
  tracked.deallocate(tracked.allocate({64}), 64);
  CHECK(program.kept() == 1);  // the others have been let go
  for (const auto& stack : tracked.all_stacks()) program.keep(stack, -1);
  CHECK(program.kept() == 0);
}

TEST(a_stack_of_a_request_that_came_to_nothing_is_let_go) {
  const Faulty system;
  Program program;
  const auto asking = std::make_shared<memcfg::FailureCallbackResource>(
      std::make_shared<memcfg::LimitingResource>(stacks::blocks_of(system), 64),
      [](Bytes) -> bool { throw std::domain_error("no"); });
  TrackingResource tracked(asking, 10, program.source());
  program.depth_ = 3;
  CHECK_THROWS(std::domain_error, tracked.allocate({65}));
  CHECK(stack_count(tracked) == 0 && tracked.history().action.empty());
  tracked.deallocate(tracked.allocate({64}), 64);
  CHECK(program.kept() == 3 && tracked.history().stacks.size() == 1);
}

TEST(stacks_come_and_go_at_random) {
  const Faulty system;
  Program program;
  TrackingResource tracked(stacks::pool_of(system, kMiB), 20, program.source());
  std::mt19937 random(5);
  std::vector<void*> blocks;
  for (int step = 0; step < 5000; ++step) {
    program.depth_ = static_cast<int>(random() % 9);
    if (blocks.size() < 10 || random() % 2 == 0) {
      blocks.push_back(tracked.allocate({64}));
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      tracked.deallocate(blocks.back(), 64);
      blocks.pop_back();
    }
    if (blocks.size() > 30) {
      for (void* address : blocks) tracked.deallocate(address, 64);
      blocks.clear();
    }
    if (step % 100 == 0) tracked.check();
  }
  for (void* address : blocks) tracked.deallocate(address, 64);
  for (const auto& stack : tracked.all_stacks()) program.keep(stack, -1);
  CHECK(program.kept() == 0);
}

TEST(a_source_may_use_the_resource_and_may_fail) {
  const Faulty system;
  const Shared pool = stacks::pool_of(system, kMiB);
  int depth = 0;
  TrackingResource tracked(
      pool, 10, [&](TrackingResource& self) -> memcfg::Stacks::Held {
        if (++depth > 3) throw std::domain_error("enough");
        self.check();
        self.history();
        self.deallocate(self.allocate({64}), 64);
        return nullptr;
      });
  CHECK_THROWS(std::domain_error, tracked.allocate({64}));
  CHECK(depth == 4 && pool->stats().allocations == 0);
  CHECK(tracked.history().action.empty() && tracked.stats().current == 0);
  const auto failing =
      memcfg::foreign_source([](void*, memcfg::Stacks::Held*) { return -1; }, nullptr);
  TrackingResource other(pool, 10, failing);
  CHECK_THROWS(memcfg::callback_raised, other.allocate({64}));
  CHECK(pool->stats().current == 0);
}

TEST(histories_of_threads_can_be_played) {
  const Faulty system;
  TrackingResource tracked(stacks::pool_of(system, 64 * kMiB), 300);
  Threads threads;
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.start([&, seed] {
      std::mt19937 random(seed);
      pools::Blocks blocks(tracked);
      for (int step = 0; step < 3000; ++step) {
        if (blocks.count() > 10) {
          blocks.give(random() % blocks.count());
        } else {
          blocks.take(named(1 + random() % 3000, seed == 0 ? "zero" : ""));
        }
      }
    });
  }
  while (threads.at_work()) {
    require_playable(tracked.history());
    tracked.check();
    tracked.blocks();
  }
  threads.finish();
  const History history = tracked.history();
  require_playable(history);
  CHECK(std::is_sorted(history.seconds.begin(), history.seconds.end()));
}

TEST(a_log_has_a_row_for_each_event) {
  const Faulty system;
  const File file;
  LoggingResource logged(stacks::pool_of(system, kMiB), file.open());
  void* const first = logged.allocate({100});
  CHECK_THROWS(memcfg::out_of_memory, logged.allocate({memcfg::kNoLimit}));
  CHECK_THROWS(std::invalid_argument, logged.allocate({0}));
  CHECK_THROWS(memcfg::bad_free, logged.deallocate(first, 99));
  CHECK(logged.resize(first, 100, 70) && logged.resize(first, 70, 70));
  logged.deallocate(first, 70);
  CHECK(file.text().empty());
  CHECK(logged.flush() == 0);
  const std::vector<LogRow> rows = read_log(file.text());
  const char* const actions[] = {
      "allocate", "allocate failure", "free", "allocate", "free"};
  const unsigned long long sizes[] = {100, memcfg::kNoLimit, 100, 70, 70};
  CHECK(rows.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(rows[i].action == actions[i] && rows[i].size == sizes[i]);
    CHECK(rows[i].address == (i == 1 ? 0 : number(first)));
    CHECK(rows[i].thread == static_cast<unsigned long long>(memcfg::thread_id()));
  }
  CHECK(logged.close() == 0 && logged.close() == 0 && logged.flush() == 0);
  logged.deallocate(logged.allocate({64}), 64);  // goes on, and is not logged
  CHECK(read_log(file.text()).size() == 5);
}

TEST(a_log_is_written_when_it_goes) {
  const Faulty system;
  const File file;
  {
    LoggingResource logged(stacks::pool_of(system, kMiB), file.open());
    for (int i = 0; i < 2000; ++i) logged.deallocate(logged.allocate({64}), 64);
    CHECK(!file.text().empty());  // more than the buffer holds
    CHECK(file.text().size() < 2000 * 2 * 40);
  }
  CHECK(read_log(file.text()).size() == 4000);
}

TEST(a_log_can_be_written_row_by_row) {
  const Faulty system;
  const File file;
  LoggingResource logged(stacks::pool_of(system, kMiB), file.open());
  logged.write_through();
  void* const block = logged.allocate({64});
  CHECK(read_log(file.text()).size() == 1);
  logged.deallocate(block, 64);
  CHECK(read_log(file.text()).size() == 2);
}

TEST(a_full_disk_stops_nobody_and_is_told) {
  const Faulty system;
  int told = 0;
  LoggingResource logged(
      stacks::pool_of(system, kMiB), open("/dev/full", O_WRONLY), [&] { ++told; });
  CHECK(logged.lost() == 0 && logged.error() == 0);
  for (int i = 0; i < 2000; ++i) logged.deallocate(logged.allocate({64}), 64);
  CHECK(told == 1 && logged.error() == ENOSPC && logged.lost() > 0);
  CHECK(logged.flush() == ENOSPC && logged.flush() == ENOSPC);
  CHECK(logged.close() == ENOSPC && logged.lost() == 4001);  // with the header
  CHECK(logged.close() == 0 && told == 1);
}

TEST(whoever_asked_for_the_write_is_told_by_its_answer) {
  const Faulty system;
  int told = 0;
  LoggingResource logged(
      stacks::pool_of(system, kMiB), open("/dev/full", O_WRONLY), [&] { ++told; });
  CHECK(logged.flush() == ENOSPC);
  logged.deallocate(logged.allocate({64}), 64);
  CHECK(told == 0);
}

TEST(a_full_disk_is_told_by_whoever_finds_out) {
  const Faulty system;
  int told = 0;
  LoggingResource logged(
      stacks::pool_of(system, kMiB), open("/dev/full", O_WRONLY), [&] { ++told; });
  std::vector<void*> blocks;
  for (int i = 0; i < 900; ++i) blocks.push_back(logged.allocate({64}));
  CHECK(told == 0);
  for (void* address : blocks) logged.deallocate(address, 64);
  CHECK(told == 1);
}

namespace {

// Takes a part at a time, and then no more until it is drained.
struct Pipe {
  Pipe() { CHECK(pipe2(ends, O_NONBLOCK) == 0); }
  ~Pipe() { close(ends[0]); }
  void drain() {
    char part[8192];
    for (;;) {
      const ssize_t count = read(ends[0], part, sizeof part);
      if (count <= 0) return;
      text.append(part, static_cast<std::size_t>(count));
    }
  }
  int ends[2] = {};
  std::string text;
};

}  // namespace

// What the file refused waits, and nothing is lost.
TEST(a_log_goes_on_when_there_is_space_again) {
  const Faulty system;
  Pipe pipe;
  LoggingResource logged(stacks::pool_of(system, kMiB), pipe.ends[1]);
  int steps = 0;
  while (logged.error() == 0) {  // pipe and buffer fill up
    logged.deallocate(logged.allocate({64}), 64);
    ++steps;
  }
  CHECK(logged.error() == EAGAIN && logged.lost() == 0);
  pipe.drain();
  while (logged.flush() != 0) pipe.drain();
  for (int i = 0; i < 100; ++i) logged.deallocate(logged.allocate({64}), 64);
  CHECK(logged.close() == 0);
  pipe.drain();
  CHECK(read_log(pipe.text).size() == static_cast<std::size_t>(2 * (steps + 100)));
}

// A log with a free chunk would tell of frees of blocks that nobody took.
TEST(a_log_that_lost_a_row_is_at_its_end) {
  const Faulty system;
  Pipe pipe;
  LoggingResource logged(stacks::pool_of(system, kMiB), pipe.ends[1]);
  int steps = 0;
  for (; logged.lost() == 0; ++steps) {
    logged.deallocate(logged.allocate({64}), 64);
  }
  const std::uint64_t lost = logged.lost();
  for (int i = 0; i < 100; ++i) {
    pipe.drain();
    logged.deallocate(logged.allocate({64}), 64);
    CHECK(logged.flush() == EAGAIN);
  }
  CHECK(logged.lost() == lost + 200);
  CHECK(logged.close() == EAGAIN);
  pipe.drain();
  const std::string whole = pipe.text.substr(0, pipe.text.rfind('\n') + 1);
  CHECK(read_log(whole).size() + logged.lost() ==
        static_cast<std::size_t>(2 * (steps + 100)));
}

// A file that may not grow: the log ends with a whole row.
TEST(a_log_that_is_truncated_has_whole_rows) {
  CHECK(children::child_does([] {
    const Faulty system;
    const File file;
    const rlimit limit{10000, 10000};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    LoggingResource logged(stacks::pool_of(system, kMiB), file.open());
    for (int i = 0; i < 500; ++i) logged.deallocate(logged.allocate({64}), 64);
    CHECK(logged.close() == EFBIG);
    const std::vector<LogRow> rows = read_log(file.text());
    CHECK(file.text().size() <= 10000 && rows.size() > 150);
    CHECK(rows.size() + logged.lost() == 1000);
  }));
}

TEST(a_child_writes_no_row_of_its_parent) {
  const Faulty system;
  const File file;
  LoggingResource logged(stacks::pool_of(system, kMiB), file.open());
  void* const block = logged.allocate({100});
  CHECK(children::child_does([&] {
    for (int i = 0; i < 2000; ++i) logged.deallocate(logged.allocate({64}), 64);
    logged.deallocate(block, 100);
    CHECK(logged.flush() == 0 && logged.close() == 0);
  }));
  CHECK(children::child_does([&] { logged.write_through(); }));
  LoggingResource full(stacks::pool_of(system, kMiB), open("/dev/full", O_WRONLY));
  CHECK(full.flush() == ENOSPC);
  CHECK(children::child_does([&] { CHECK(full.flush() == 0 && full.close() == 0); }));
  CHECK(file.text().empty());
  logged.deallocate(block, 100);
  CHECK(logged.close() == 0);
  CHECK(read_log(file.text()).size() == 2);
}

TEST(forks_while_threads_record) {
  const Faulty system;
  const File file;
  const auto tracked =
      std::make_shared<TrackingResource>(stacks::pool_of(system, 64 * kMiB), 100);
  LoggingResource logged(tracked, file.open());
  std::atomic<bool> done{false};
  std::atomic<std::size_t> pairs{0};
  Threads threads;
  for (unsigned seed = 0; seed < 2; ++seed) {
    threads.start([&, seed] {
      while (!done) {
        logged.deallocate(logged.allocate(named(64 + seed, "thread")), 64 + seed);
        ++pairs;
      }
    });
  }
  for (int round = 0; round < 40; ++round) {
    CHECK(children::child_does([&] {
      for (int i = 0; i < 1000; ++i) logged.deallocate(logged.allocate({64}), 64);
      const auto history = tracked->history();
      CHECK(history.thread.back() == getpid());  // of the only thread there is
      require_playable(history);
      tracked->check();
      logged.check();
      CHECK(logged.flush() == 0);
    }));
  }
  done = true;
  threads.finish();
  CHECK(logged.close() == 0);
  const std::vector<LogRow> rows = read_log(file.text());
  CHECK(count(rows, "allocate") == pairs && count(rows, "free") == pairs);
  std::set<unsigned long long> out;
  for (const LogRow& row : rows) {
    CHECK(row.action == "free" ? out.erase(row.address) == 1
                               : out.insert(row.address).second);
  }
}
