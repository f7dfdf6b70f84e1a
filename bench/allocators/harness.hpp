// What every workload needs: a clock, random numbers, quantiles, lines of JSON.
//
// A peer is a class that adapts one allocator:
//
//     explicit Peer(const Terms&);           the allocator, fresh
//     void* allocate(Bytes size);            null when it refuses
//     void deallocate(void*, Bytes size);    size as requested
//     Held held() const;                     what it says of itself
//     bool trim();                           give memory back; false: it cannot
//     static constexpr bool kLimited;        it keeps to Terms::limit
//
// Workloads are templates over it, so that all peers run the same trace, compiled the
// same way.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace bench {

using Bytes = std::size_t;  // a size, in bytes

constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes{n} << 10;
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes{n} << 20;
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes{n} << 30;
}

constexpr Bytes kUnknown = ~Bytes{0};  // the peer does not tell

// What the allocator is asked to be.
struct Terms {
  Bytes limit = 16_GiB;         // of the bytes handed out; enough for every workload
  bool addresses_only = false;  // nothing is touched: addresses without memory will do
};

// What an allocator says of itself, in bytes.
struct Held {
  Bytes peak_in_use = kUnknown;    // highest sum of the blocks as it rounds them
  Bytes peak_reserved = kUnknown;  // highest sum taken from the system
  Bytes metadata = kUnknown;       // its metadata, where it counts them
};

// What the command line says.
struct Options {
  std::string workload;
  std::string variant;     // of the peer
  std::uint64_t seed = 1;  // of every trace
  bool quick = false;      // a tenth of the work, for developers
};

// ---- Random numbers: the same on every machine with the same libm

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // Uniform in [low, high].
  Bytes uniform(Bytes low, Bytes high) { return low + engine_() % (high - low + 1); }

  // Uniform in the logarithm, in [low, high].
  Bytes log_uniform(Bytes low, Bytes high) {
    const double unit = static_cast<double>(engine_() >> 11) * 0x1p-53;
    const double from = std::log(static_cast<double>(low));
    const double to = std::log(static_cast<double>(high));
    return static_cast<Bytes>(std::exp(from + unit * (to - from)));
  }

 private:
  std::mt19937_64 engine_;
};

// ---- Time

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline std::uint32_t nanoseconds(Clock::time_point from, Clock::time_point to) {
  const auto count =
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count();
  return static_cast<std::uint32_t>(std::min<std::int64_t>(count, UINT32_MAX));
}

// Makes the compiler believe that somebody reads `pointer` and what it points to.
inline void use(void* pointer) {
  asm volatile("" : : "g"(pointer) : "memory");
}

constexpr int kStretches = 5;  // the fastest one counts: others' work only slows down

// Calls body(count) with a count that takes `seconds` over all stretches, after a
// warm-up, and returns the seconds of one in the fastest stretch.
template <class Body>
double seconds_each(double seconds, Body&& body) {
  const auto timed = [&](std::size_t count) {
    const auto start = Clock::now();
    body(count);
    return seconds_since(start);
  };
  std::size_t count = 16;
  double taken = timed(count);
  while (taken < seconds / 8) taken = timed(count *= 2);
  const double wanted = static_cast<double>(count) * seconds / taken / kStretches;
  count = std::max(std::size_t{16}, static_cast<std::size_t>(wanted));
  taken = timed(count);
  for (int i = 1; i < kStretches; ++i) taken = std::min(taken, timed(count));
  return taken / static_cast<double>(count);
}

// Keeps the calling thread on one processor. Where that is refused, it runs anywhere.
inline void pin(unsigned processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

// ---- Memory of this process

// Resident bytes, now.
inline Bytes resident() {
  std::ifstream file("/proc/self/statm");
  Bytes size = 0;
  Bytes pages = 0;
  file >> size >> pages;
  return pages * 4096;
}

// The highest number of resident bytes since it was made.
class PeakResident {
 public:
  PeakResident() : before_(resident()) {
    std::ofstream("/proc/self/clear_refs") << 5;  // forgets the peak so far
  }
  Bytes grown() const {
    std::ifstream file("/proc/self/status");
    std::string word;
    while (file >> word && word != "VmHWM:") {
    }
    Bytes kib = 0;
    file >> kib;
    return kib * 1024 - before_;
  }

 private:
  const Bytes before_;
};

// Writes to every page.
inline void touch(void* block, Bytes size) {
  auto* const bytes = static_cast<volatile char*>(block);
  for (Bytes at = 0; at < size; at += 4096) bytes[at] = 1;
  bytes[size - 1] = 1;
}

// ---- Results: one JSON object a line

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void add(const std::string& name, const char* metric, double value) const {
    std::printf(
        "{\"workload\": \"%s\", \"case\": \"%s\", \"metric\": \"%s\", "
        "\"value\": %.9g, \"seed\": %llu}\n",
        options_.workload.c_str(),
        name.c_str(),
        metric,
        value,
        static_cast<unsigned long long>(options_.seed));
    std::fflush(stdout);
  }

  // `part` of `whole`, unless the peer does not tell.
  void ratio(const std::string& name,
             const char* metric,
             Bytes part,
             Bytes whole) const {
    if (whole == kUnknown || whole == 0) return;
    add(name, metric, static_cast<double>(part) / static_cast<double>(whole));
  }

  // Median, tail and worst of some nanoseconds; sorts them.
  void latencies(const std::string& name, std::vector<std::uint32_t>& found) const {
    std::sort(found.begin(), found.end());
    const auto at = [&](double share) {
      return found[static_cast<std::size_t>(share * static_cast<double>(found.size()))];
    };
    add(name, "p50 ns", at(0.5));
    add(name, "p99 ns", at(0.99));
    add(name, "p99.9 ns", at(0.999));
    add(name, "max ns", found.back());
  }

 private:
  const Options& options_;
};

// "256 B", "64 KiB": a size for a heading.
inline std::string text(Bytes size) {
  const char* const units[] = {" B", " KiB", " MiB", " GiB"};
  unsigned unit = 0;
  while (size >= 1024 && size % 1024 == 0 && unit < 3) {
    size /= 1024;
    ++unit;
  }
  return std::to_string(size) + units[unit];
}

}  // namespace bench
