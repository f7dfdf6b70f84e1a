#include "memcfg/error.hpp"

namespace memcfg {

const char* out_of_memory::what() const noexcept {
  switch (info_->cause) {
    case OutOfMemoryInfo::limit_reached:
      return "A request does not fit the memory limit.";
    case OutOfMemoryInfo::limit_lowered:
      return "The limit cannot be set below the bytes in use.";
    case OutOfMemoryInfo::fragmented:
      return "Enough memory is free, but not in one piece.";
    case OutOfMemoryInfo::tracked_limit:
      return "A request does not fit the limit on the memory of all pools.";
    case OutOfMemoryInfo::rss_limit:
      return "A request does not fit the limit on the process' resident memory.";
    case OutOfMemoryInfo::no_memory:
      return "The system refuses the memory.";
    case OutOfMemoryInfo::device_full:
      return "The simulated device has no more memory.";
    case OutOfMemoryInfo::file_full:
      return "The file has no more room.";
    case OutOfMemoryInfo::upstream_exhausted:
      return "The resource below the pool has no more memory.";
    case OutOfMemoryInfo::workspace_full:
      return "The workspace is full.";
    case OutOfMemoryInfo::no_addresses:
      return "There are no addresses for the memory.";
  }
  return "out of memory";
}

Failure current_failure() {
  try {
    throw;
  } catch (const out_of_memory& error) {
    return {Failure::memory, error.what(), error.info()};
  } catch (const std::bad_alloc& error) {  // the core's own metadata, not the pool
    return {Failure::heap, error.what(), {}};
  } catch (const kernel_failure& error) {
    return {Failure::kernel, error.what(), {}};
  } catch (const still_held& error) {
    return {Failure::held, error.what(), {}};
  } catch (const invariant_broken& error) {
    return {Failure::invariant, error.what(), {}};
  } catch (const callback_raised& error) {
    return {Failure::callback, error.what(), {}};
  } catch (const bad_free& error) {  // before its base class
    return {Failure::freeing, error.what(), {}};
  } catch (const file_error& error) {
    return {Failure::file, error.what(), {}, error.number(), error.path()};
  } catch (const std::invalid_argument& error) {
    return {Failure::argument, error.what(), {}};
  } catch (const std::exception& error) {
    return {Failure::other, error.what(), {}};
  } catch (...) {
    return {Failure::other, "an exception that is no std::exception", {}};
  }
}

}  // namespace memcfg
