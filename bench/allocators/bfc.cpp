// TensorFlow's allocator, tsl::BFCAllocator, as its wheel exports it, over mmap.
// Options as TensorFlow sets them for a GPU, except that a refusal does not wait ten
// seconds for another thread to free something.
//
// Variants: "growth" (regions that double, each a mapping of its own), "virtual" (the
// same, one after another in one range of addresses, so that they coalesce: what
// TensorFlow does where CUDA has virtual memory), "fixed" (the whole limit at once).
#include <sys/mman.h>

#include <memory>

#include "workloads.hpp"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

using bench::Bytes;

std::string variant = "growth";

struct Counters {
  Bytes reserved = 0;
  Bytes peak = 0;
};

void* map(Bytes size, int access) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const pages = mmap(nullptr, size, access, flags, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

class Pages final : public tsl::SubAllocator {
 public:
  // `range`: bytes of addresses to take regions from in turn; 0: wherever the system
  // says.
  Pages(Counters& counters, Bytes range)
      : tsl::SubAllocator({}, {}), counters_(counters), range_(range) {
    if (range_ > 0)
      base_ = next_ = static_cast<char*>(map(range_, PROT_READ | PROT_WRITE));
  }
  ~Pages() override {
    if (range_ > 0) munmap(base_, range_);
  }

  void* Alloc(size_t, size_t size, size_t* received) override {
    *received = size;
    void* const pages = range_ > 0 ? bump(size) : map(size, PROT_READ | PROT_WRITE);
    if (pages == nullptr) return nullptr;
    counters_.reserved += size;
    counters_.peak = std::max(counters_.peak, counters_.reserved);
    return pages;
  }
  void Free(void* pages, size_t size) override {
    counters_.reserved -= size;
    range_ > 0 ? madvise(pages, size, MADV_DONTNEED) : munmap(pages, size);
  }
  bool SupportsCoalescing() const override { return range_ > 0; }

 private:
  void* bump(Bytes size) {
    if (next_ + size > base_ + range_) return nullptr;
    return std::exchange(next_, next_ + size);
  }

  Counters& counters_;
  const Bytes range_;
  char* base_ = nullptr;
  char* next_ = nullptr;
};

class Bfc {
 public:
  static constexpr bool kLimited = true;
  explicit Bfc(const bench::Terms& terms)
      : allocator_(std::make_unique<Pages>(counters_,
                                           variant == "virtual" ? 4 * terms.limit : 0),
                   terms.limit,
                   "bfc",
                   options()) {}

  void* allocate(Bytes size) { return allocator_.AllocateRaw(64, size, once_); }
  void deallocate(void* block, Bytes) { allocator_.DeallocateRaw(block); }
  bench::Held held() {
    bench::Held held;
    held.peak_in_use = static_cast<Bytes>(allocator_.GetStats()->peak_bytes_in_use);
    if (variant != "fixed") held.peak_reserved = counters_.peak;
    return held;
  }
  bool trim() { return false; }  // it has no such call

 private:
  static tsl::BFCAllocator::Options options() {
    tsl::BFCAllocator::Options options;
    options.allow_growth = variant != "fixed";
    options.allow_retry_on_failure = false;
    options.garbage_collection = true;
    return options;
  }

  Counters counters_;
  const tsl::AllocationAttributes once_{false, false, nullptr};
  tsl::BFCAllocator allocator_;
};

}  // namespace

int main(int count, char** words) {
  const bench::Options options = bench::parse(count, words);
  if (!options.variant.empty()) variant = options.variant;
  return bench::run<Bfc>(options);
}
