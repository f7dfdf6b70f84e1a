// memcfg's pool, compiled from the sources beside it. Variants: "growth" and "fixed"
// (the whole limit is taken at once).
#include <memory>

#include "memcfg/pool.hpp"
#include "memcfg/system_resource.hpp"
#include "workloads.hpp"

namespace {

using bench::Bytes;

bool growth = true;

std::shared_ptr<memcfg::Resource> upstream(const bench::Terms& terms) {
  if (!terms.addresses_only) return nullptr;  // the host's pages
  return std::make_shared<memcfg::SimulatedResource>("bench", terms.limit);
}

class Ours {
 public:
  static constexpr bool kLimited = true;
  explicit Ours(const bench::Terms& terms)
      : pool_("bench", terms.limit, growth, upstream(terms)) {}

  void* allocate(Bytes size) {
    try {
      return pool_.allocate({size});
    } catch (const memcfg::out_of_memory&) {
      return nullptr;
    }
  }
  void deallocate(void* block, Bytes size) { pool_.deallocate(block, size); }
  bench::Held held() const {
    const memcfg::ResourceStats stats = pool_.stats();
    return {stats.peak, growth ? stats.peak_reserved : bench::kUnknown, stats.metadata};
  }
  bool trim() {
    pool_.trim(0);
    return true;
  }

 private:
  memcfg::Pool pool_;
};

}  // namespace

int main(int count, char** words) {
  const bench::Options options = bench::parse(count, words);
  growth = options.variant != "fixed";
  return bench::run<Ours>(options);
}
