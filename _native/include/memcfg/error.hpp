// What can go wrong in the core, as types that carry numbers instead of prose.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// Why an allocation failed. The numbers are of one moment: in_use + free == limit.
struct OutOfMemoryInfo {
  enum Cause {
    limit_reached,       // the limit is too low for the request
    limit_lowered,       // more is in use than the limit asked for
    fragmented,          // enough is free under the limit, but not in whole pages
    tracked_limit,       // the limit on the bytes of all pools of the process
    rss_limit,           // the limit on the memory that the process has resident
    no_memory,           // the system has no more memory
    device_full,         // the device has no more memory
    simulated_full,      // the simulated device has none
    file_full,           // the mapped file is no longer than that
    upstream_exhausted,  // the resource below a pool refuses a block
    workspace_full,      // the workspace must not take more than its page
    lost_to_fork,        // the device's memory stayed in the parent of a fork
    no_addresses,  // the system refuses addresses, or an arena has used up its own
  };
  Cause cause = limit_reached;
  Bytes requested = 0;            // bytes asked for on top of what the holder has
  Bytes rounded = 0;              // what the limit would have been charged for it
  Bytes in_use = 0;               // bytes charged to the pool
  Bytes reserved = 0;             // bytes committed
  Bytes free_bytes = 0;           // committed bytes that no block holds
  Bytes largest_free_chunk = 0;   // largest free range, in bytes
  Bytes limit = kNoLimit;         // bytes; kNoLimit when the pool has none
  Bytes largest_free = kNoLimit;  // largest request that the limit would have allowed
  std::string device;             // the pool's name
  std::vector<std::pair<std::string, Bytes>> owners;  // largest first, a few

  const char* next() const;  // one sentence: what the user may try
};

// A request does not fit. Nothing was taken, nothing has changed.
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(OutOfMemoryInfo info)
      : info_(std::make_shared<const OutOfMemoryInfo>(std::move(info))) {}
  const char* what() const noexcept override;  // one sentence without the numbers
  const OutOfMemoryInfo& info() const noexcept { return *info_; }

 private:
  std::shared_ptr<const OutOfMemoryInfo>
      info_;  // shared: exceptions copy without throwing
};

// An address that is no block of the resource, or a block of another size. Nothing has
// changed.
class bad_free : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A file cannot be used as was asked for. Nothing has changed.
class file_error : public std::runtime_error {
 public:
  file_error(int number, const std::string& words, const std::string& path)
      : std::runtime_error(words),
        number_(number),
        path_(std::make_shared<const std::string>(path)) {}
  int number() const noexcept { return number_; }  // as in errno(3)
  const std::string& path() const noexcept { return *path_; }

 private:
  int number_;
  std::shared_ptr<const std::string> path_;  // shared, as above
};

// A kernel could not be made, or failed while it ran.
class kernel_failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A library that is needed is not there, or finds nothing that it could work with.
class missing_dependency : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory cannot be given back: a program or an exported buffer still points into it.
class still_held : public std::logic_error {
  using std::logic_error::logic_error;
};

// An invariant that a `check()` states does not hold: a defect of memcfg.
class invariant_broken : public std::logic_error {
  using std::logic_error::logic_error;
};

// A callback kernel's function failed; its caller keeps the reason.
class callback_raised : public std::exception {
 public:
  const char* what() const noexcept override { return "a callback raised"; }
};

// The exception being handled, for the boundary to Python.
struct Failure {
  const char* name;  // of the class that it becomes there
  std::string text;
  std::optional<OutOfMemoryInfo> info = {};  // of an out_of_memory
  int number = 0;                            // as in errno(3), of a file_error
  std::string path = {};                     // likewise
};

// Pre: called inside a catch handler.
Failure current_failure();

// Throws invariant_broken(text) unless `holds`.
inline void require(bool holds, const char* text) {
  if (!holds) throw invariant_broken(text);
}

}  // namespace memcfg
