// Operands for tests of kernels: heap blocks of exactly their size, so that the
// sanitizers see every byte read or written outside; full of garbage when new.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memcfg/kernel.hpp"

namespace operands {

using memcfg::Kernel;
using memcfg::KernelSpec;
using memcfg::OperandSpec;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// An aligned block that ends where its last byte does; new ones are full of garbage.
class Block {
 public:
  explicit Block(std::size_t size) : size_(size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, memcfg::kAlignment, size == 0 ? 1 : size) != 0) {
      throw std::bad_alloc();
    }
    bytes_.reset(static_cast<unsigned char*>(memory));
    std::memset(memory, 0xFF, size);  // as floats: NaN
  }
  template <class T>
  explicit Block(const std::vector<T>& values) : Block(values.size() * sizeof(T)) {
    std::memcpy(bytes_.get(), values.data(), size_);
  }
  void* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> result(size_ / sizeof(T));
    std::memcpy(result.data(), bytes_.get(), size_);
    return result;
  }
  std::vector<float> floats() const { return values<float>(); }

 private:
  std::size_t size_;
  std::unique_ptr<unsigned char, Free> bytes_;
};

// The blocks have just the bytes that the kernel declares for its operands.
inline void run(const Kernel& kernel, std::initializer_list<const Block*> operands) {
  std::vector<void*> addresses;
  CHECK(operands.size() == kernel.operands().size());
  for (const Block* operand : operands) {
    CHECK(operand->size() == kernel.operands()[addresses.size()].size);
    addresses.push_back(operand->data());
  }
  const Block scratch(kernel.scratch_bytes());
  kernel.run(addresses.data(),
             kernel.scratch_bytes() == 0 ? nullptr : scratch.data(),
             kernel.make_run_state().get());
}

inline void run(const KernelSpec& spec, std::initializer_list<const Block*> operands) {
  run(*memcfg::make_kernel(spec, nullptr), operands);
}

inline OperandSpec f32(std::vector<std::int64_t> shape = {}) {
  return {std::move(shape), "float32"};
}

inline Block floats(std::size_t count) {
  return Block(count * sizeof(float));
}

// Values in [-1, 1) that look random and are the same everywhere.
inline std::vector<float> noise(std::size_t count, std::uint32_t seed = 1) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / 8388608.0F - 1.0F;
  }
  return values;
}

inline bool near(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const float error = std::abs(found[i] - expected[i]);
    if (!(error <= 1e-5F + 1e-4F * std::abs(expected[i]))) return false;
  }
  return true;
}

inline std::size_t size_of(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace operands
