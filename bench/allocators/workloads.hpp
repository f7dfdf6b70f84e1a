// The workloads by name, and the command line that all harnesses share.
#pragma once

#include <cstring>

#include "free_chunks.hpp"
#include "harness.hpp"
#include "limits.hpp"
#include "metadata.hpp"
#include "pairs.hpp"
#include "threads.hpp"
#include "traces.hpp"
#include "training.hpp"

namespace bench {

template <class Peer>
struct Workload {
  const char* name;
  void (*run)(const Options&, const Report&);
};

template <class Peer>
constexpr Workload<Peer> kWorkloads[] = {
    {"clock", clock_cost<Peer>},
    {"pair", pair<Peer>},
    {"delayed", delayed<Peer>},
    {"threads", threads<Peer>},
    {"larson", larson<Peer>},
    {"free_chunks", free_chunks<Peer>},
    {"live_set", live_set<Peer>},
    {"growth", growth<Peer>},
    {"resident_set", resident_set<Peer>},
    {"sawtooth", sawtooth<Peer>},
    {"random_grid", random_grid<Peer>},
    {"first_refusal", first_refusal<Peer>},
    {"tight", tight<Peer>},
    {"promote", promote<Peer>},
    {"metadata", metadata<Peer>},
    {"release", release<Peer>},
};

// PROGRAM WORKLOAD [--variant NAME] [--seed NUMBER] [--quick]
inline Options parse(int count, char** words) {
  Options options;
  options.workload = count > 1 ? words[1] : "";
  for (int i = 2; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--variant" && i + 1 < count) {
      options.variant = words[++i];
    } else if (word == "--seed" && i + 1 < count) {
      options.seed = std::strtoull(words[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "unknown option: %s\n", word.c_str());
      std::exit(2);
    }
  }
  return options;
}

template <class Peer>
int run(const Options& options) {
  for (const Workload<Peer>& workload : kWorkloads<Peer>) {
    if (options.workload != workload.name) continue;
    workload.run(options, Report(options));
    return 0;
  }
  std::fprintf(stderr, "name one workload:");
  for (const auto& workload : kWorkloads<Peer>)
    std::fprintf(stderr, " %s", workload.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace bench
