// Resources of every kind, alone and on top of one another.
#pragma once

#include <fcntl.h>

#include <memory>

#include "cuda_stand_in.hpp"
#include "files.hpp"
#include "memcfg/adaptor.hpp"
#include "memcfg/cuda.hpp"
#include "memcfg/logging.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/system_resource.hpp"
#include "memcfg/tracking.hpp"
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

inline Shared tracked(const Shared& upstream) {
  return std::make_shared<memcfg::TrackingResource>(upstream, 100);
}
inline Shared logged(const Shared& upstream) {
  return std::make_shared<memcfg::LoggingResource>(upstream,
                                                   open("/dev/null", O_WRONLY));
}
// Every row is lost, and nobody minds.
inline Shared logged_to_a_full_disk(const Shared& upstream) {
  return std::make_shared<memcfg::LoggingResource>(upstream,
                                                   open("/dev/full", O_WRONLY));
}

inline Shared file_of(const Faulty& system) {
  return files::nameless(Bytes{64} << 20, system);
}

inline Shared cuda(bool virtual_memory = true, const char* refused = "") {
  cuda_stand_in::gpu().virtual_memory = virtual_memory;
  cuda_stand_in::gpu().refused = refused;
  const auto driver = std::make_shared<memcfg::CudaDriver>(cuda_stand_in::api());
  const auto context = std::make_shared<memcfg::CudaContext>(driver, 0);
  return std::make_shared<memcfg::DeviceResource>(
      "d", std::make_shared<memcfg::CudaSystem>(context));
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
    {"tracking", [](const Faulty& s) { return tracked(pool_of(s, kLimit)); }},
    {"tracking blocks", [](const Faulty& s) { return tracked(blocks_of(s)); }},
    {"pool on tracking",
     [](const Faulty& s) { return pool_on(tracked(blocks_of(s))); }},
    {"logging", [](const Faulty& s) { return logged(pool_of(s, kLimit)); }},
    {"a full disk",
     [](const Faulty& s) { return logged_to_a_full_disk(pool_of(s, kLimit)); }},
    {"CUDA", [](const Faulty&) { return cuda(); }},
    {"pool on CUDA", [](const Faulty&) { return pool_on(cuda()); }},
    {"pool on CUDA blocks", [](const Faulty&) { return pool_on(cuda(false)); }},
    {"pool on CUDA that refuses pages",
     [](const Faulty&) { return pool_on(cuda(true, "cuMemCreate")); }},
    {"file", file_of},
    {"pool on a file", [](const Faulty& s) { return pool_on(file_of(s)); }},
    {"all at once",
     [](const Faulty&) {
       return tracked(counted(logged(limited(asking(pool_on(simulated()))))));
     }},
};

}  // namespace stacks
