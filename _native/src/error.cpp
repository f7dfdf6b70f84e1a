#include "memcfg/error.hpp"

namespace memcfg {

namespace {

struct Words {
  const char* what;  // has happened
  const char* next;  // to try
};

// By OutOfMemoryInfo::Cause.
constexpr Words kWords[] = {
    {"A request does not fit the memory limit.",
     "Free memory first, or raise the limit with set_limit."},
    {"The limit cannot be set below the bytes in use.",
     "Free memory first, or choose a higher limit."},
    {"Enough memory is free, but not in one piece.",
     "Trim, or allocate what lives long with lifetime='long' so that it lies apart."},
    {"A request does not fit the limit on the memory of all pools.",
     "Raise the limit with memcfg.config.set_host_memory_limit(tracked=...) or free "
     "memory of another pool."},
    {"A request does not fit the limit on the process' resident memory.",
     "Raise the limit with memcfg.config.set_host_memory_limit(rss=...) or trim the "
     "pools that hold idle memory."},
    {"The system refuses the memory.", "Close other programs or lower the batch size."},
    {"The device has no more memory.",
     "Free memory of the device, or lower the batch size."},
    {"The simulated device has no more memory.",
     "Free memory of the device, or simulate a larger one."},
    {"The file has no more room.",
     "Free memory of the file, or open it with more bytes."},
    {"The resource below the pool has no more memory.",
     "Free memory of the resource below, or raise its limit."},
    {"The workspace is full.",
     "Give the workspace a larger size, or the spill policy 'external' or "
     "'reallocate'."},
    {"The device belongs to the process that this one was forked from.",
     "Start processes that use a GPU with the 'spawn' or 'forkserver' method."},
    {"There are no addresses for the memory.",
     "Reserve fewer addresses, or raise the process' limit (ulimit -v)."},
};

}  // namespace

const char* out_of_memory::what() const noexcept {
  return kWords[info_->cause].what;
}

const char* OutOfMemoryInfo::next() const {
  const bool of_device = device.rfind("/device:", 0) == 0;
  if (cause != limit_reached || !of_device) return kWords[cause].next;
  return "Raise the limit (memcfg.config.set_memory_limit, or that of the budget) or "
         "lower the batch size.";
}

Failure current_failure() {
  try {
    throw;
  } catch (const out_of_memory& error) {
    const bool full = error.info().cause == OutOfMemoryInfo::workspace_full;
    return {full ? "WorkspaceFullError" : "ResourceExhaustedError",
            error.what(),
            error.info()};
  } catch (const std::bad_alloc& error) {  // the core's own metadata, not the pool
    return {"MemoryError", error.what()};
  } catch (const kernel_failure& error) {
    return {"KernelError", error.what()};
  } catch (const missing_dependency& error) {
    return {"MissingDependencyError", error.what()};
  } catch (const still_held& error) {
    return {"BufferError", error.what()};
  } catch (const invariant_broken& error) {
    return {"AssertionError", error.what()};
  } catch (const bad_free& error) {  // before its base class
    return {"InvalidFreeError", error.what()};
  } catch (const file_error& error) {
    return {"OSError", error.what(), {}, error.number(), error.path()};
  } catch (const std::invalid_argument& error) {
    return {"ValueError", error.what()};
  } catch (const std::length_error& error) {  // of codecs
    return {"ValueError", error.what()};
  } catch (const std::exception& error) {
    return {"RuntimeError", error.what()};
  } catch (...) {
    return {"RuntimeError", "an exception that is no std::exception"};
  }
}

}  // namespace memcfg
