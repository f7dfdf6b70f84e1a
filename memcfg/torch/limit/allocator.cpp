// An allocator of PyTorch's for CPU tensors over functions that memcfg hands over.
//
// `_allocator_library.py` compiles it against the PyTorch that is installed. Once it is
// registered it stays: oneDNN's memory is freed by whatever allocator is registered
// then (MKLDNNCommon.cpp), so this one knows its own blocks and passes others on.
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace torch::autograd {
// Weak: where a PyTorch lacks it, what backward makes has no tag.
__attribute__((weak)) int get_current_graph_task_id();
}  // namespace torch::autograd

extern "C" {
// As in _native/include/memcfg/host_allocator.hpp, which says what is promised.
struct memcfg_refusal {
  std::uint64_t number;
  std::size_t requested, in_use, limit;
  const char* sentence;
};
struct memcfg_host_functions {
  std::uint32_t version;
  void* context;
  void* (*allocate)(void*, std::size_t, const char*, memcfg_refusal*);
  int (*free)(void*, void*);
};
}

namespace {

constexpr std::uint32_t kVersion = 1;

const memcfg_host_functions* functions = nullptr;
PyObject* error_type = nullptr;    // called with the text; kept for ever
c10::Allocator* before = nullptr;  // the one that was registered
std::atomic<bool> enabled{false};

// The GIL need not be held here, and waiting for it could be waiting for ever: the
// Python exception is made where PyTorch hands this one over. Its last words are the
// number under which memcfg has the rest; its first ones are those by which libraries
// such as accelerate and Lightning know that a smaller batch may do.
class OutOfMemory final : public torch::PyTorchError {
 public:
  explicit OutOfMemory(const memcfg_refusal& refusal)
      : torch::PyTorchError(text(refusal)) {}
  PyObject* python_type() override { return error_type; }

 private:
  static std::string text(const memcfg_refusal& refusal) {
    std::string text = std::string("CPU out of memory. ") + refusal.sentence +
                       " (DefaultCPUAllocator: can't allocate memory)\nRequested " +
                       std::to_string(refusal.requested) + " B; in use " +
                       std::to_string(refusal.in_use) + " B; ";
    text += refusal.limit == SIZE_MAX ? "no limit"
                                      : "limit " + std::to_string(refusal.limit) + " B";
    return text + ". [memcfg refusal " + std::to_string(refusal.number) + "]";
  }
};

// The profiler is told first: the address may be another thread's at once.
void release(void* address) {
  if (address == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(address);
  if (functions->free(functions->context, address) != 0) return;
  const c10::DeleterFnPtr deleter = before->raw_deleter();
  (deleter != nullptr ? deleter
                      : c10::GetDefaultCPUAllocator()->raw_deleter())(address);
}

const char* phase() {
  const auto task = torch::autograd::get_current_graph_task_id;
  return task != nullptr && task() >= 0 ? "backward" : "";
}

class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (!enabled.load(std::memory_order_relaxed)) return before->allocate(size);
    void* const address = size == 0 ? nullptr : take(size);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void* take(std::size_t size) {
    memcfg_refusal refusal;
    void* const address =
        functions->allocate(functions->context, size, phase(), &refusal);
    if (address == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(size);
      throw OutOfMemory(refusal);
    }
    c10::profiledCPUMemoryReporter().New(address, size);
    return address;
  }
};

}  // namespace

extern "C" {

// 0: registered. 1: another allocator has a higher priority. 2: not this version. Pre:
// the GIL is held, `made` is good for ever, and `type` is an exception class.
__attribute__((visibility("default"))) int memcfg_torch_register(
    const memcfg_host_functions* made, PyObject* type) {
  static PoolAllocator* const allocator = new PoolAllocator;  // freed after all else
  if (made->version != kVersion) return 2;
  if (functions == nullptr) {
    before = c10::GetCPUAllocator();
    functions = made;
    error_type = type;
    Py_INCREF(type);
  }
  c10::SetCPUAllocator(allocator);
  return c10::GetCPUAllocator() == allocator ? 0 : 1;
}

// Whether tensors are made in the pool from now on.
__attribute__((visibility("default"))) void memcfg_torch_enable(int on) {
  enabled.store(on != 0);
}
}
