// Resources of every kind, alone and on top of one another.
#pragma once

#include <memory>

#include "memcfg/failure_callback.hpp"
#include "memcfg/limiting.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/simulated.hpp"
#include "memcfg/statistics.hpp"
#include "memcfg/system_resource.hpp"
#include "systems.hpp"

namespace stacks {

using memcfg::Bytes;
using memcfg::kNoLimit;
using Shared = std::shared_ptr<memcfg::Resource>;

inline constexpr Bytes kLimit = Bytes{256} << 20;

inline Shared blocks_of(const Faulty& system) {
  return std::make_shared<memcfg::SystemResource>(
      "d", std::shared_ptr<const memcfg::System>(std::shared_ptr<void>(), &system));
}
inline Shared pool_of(const Faulty& system, Bytes limit) {
  return std::make_shared<memcfg::Pool>("d", limit, system);
}
inline Shared simulated() {
  return std::make_shared<memcfg::SimulatedResource>("d", Bytes{1} << 30);
}
inline Shared pool_on(const Shared& upstream) {
  return std::make_shared<memcfg::Pool>("", kLimit, true, upstream);
}
inline Shared limited(const Shared& upstream) {
  return std::make_shared<memcfg::LimitingResource>(upstream, kLimit);
}
inline Shared counted(const Shared& upstream) {
  return std::make_shared<memcfg::StatisticsResource>(upstream);
}
inline Shared asking(const Shared& upstream) {
  return std::make_shared<memcfg::FailureCallbackResource>(upstream,
                                                           [](Bytes) { return false; });
}

struct Case {
  const char* name;
  Shared (*make)(const Faulty& system);
};

inline const Case kCases[] = {
    {"system", blocks_of},
    {"simulated", [](const Faulty&) { return simulated(); }},
    {"pool without a limit", [](const Faulty& s) { return pool_of(s, kNoLimit); }},
    {"pool", [](const Faulty& s) { return pool_of(s, kLimit); }},
    {"pool on simulated", [](const Faulty&) { return pool_on(simulated()); }},
    {"pool on blocks", [](const Faulty& s) { return pool_on(blocks_of(s)); }},
    {"pool on pool", [](const Faulty& s) { return pool_on(pool_of(s, kNoLimit)); }},
    {"limiting", [](const Faulty& s) { return limited(blocks_of(s)); }},
    {"statistics", [](const Faulty& s) { return counted(pool_of(s, kLimit)); }},
    {"failure callback", [](const Faulty& s) { return asking(pool_of(s, kLimit)); }},
    {"all at once",
     [](const Faulty&) { return counted(limited(asking(pool_on(simulated())))); }},
};

}  // namespace stacks
