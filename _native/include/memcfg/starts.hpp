// Which chunk starts at an address: the way from a pointer back to its metadata.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "memcfg/free_chunks.hpp"
#include "memcfg/metadata.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// The starts of one span of addresses, one for each kAlignment bytes.
struct StartTable {
  static constexpr Bytes kSpan = Bytes{16} << 10;  // bytes of addresses

  std::array<std::atomic<ChunkId>, kSpan / kAlignment> starts;
  std::uint32_t count;  // how many of them are set
  std::uint32_t spare;

  std::uint32_t& link() noexcept { return spare; }
};

// Chunks by their first address, for one segment. `find` needs no lock, for an address
// that was entered and is not erased meanwhile; for any other it says 0 or some chunk
// that starts elsewhere.
//
// A span with one start holds the chunk itself; with more it holds a table, and keeps
// it until its last start is erased. 16 KiB a span: 4 MiB of entries for 16 GiB.
class Starts {
 public:
  Starts() = default;
  Starts(const System& system, Bytes size)
      : entries_(system, (size + StartTable::kSpan - 1) / StartTable::kSpan) {}

  ChunkId find(const Store<StartTable>& tables, Offset offset) const noexcept {
    const std::uint32_t entry = entries_[offset / StartTable::kSpan].load(kAcquire);
    if ((entry & 1) == 0) return entry / 2;
    return slot(tables[entry / 2], offset).load(kAcquire);
  }

  // Pre: a table is secured, id < 2^31.
  void enter(Store<StartTable>& tables,
             Offset offset,
             Offset other,
             ChunkId id) noexcept;
  void erase(Store<StartTable>& tables, Offset offset) noexcept;

  // The chunk that has a span for itself; 0 when there is none.
  ChunkId lone(Offset offset) const noexcept {
    const std::uint32_t entry = entries_[offset / StartTable::kSpan].load(kAcquire);
    return (entry & 1) == 0 ? entry / 2 : 0;
  }

  void reset() noexcept { entries_.reset(); }  // pre: no start is entered

  Bytes bytes() const noexcept { return entries_.bytes(); }

 private:
  static constexpr auto kAcquire = std::memory_order_acquire;
  static constexpr auto kRelease = std::memory_order_release;

  static std::atomic<ChunkId>& slot(StartTable& table, Offset offset) noexcept {
    return table.starts[offset % StartTable::kSpan / kAlignment];
  }

  MetadataArray<std::atomic<std::uint32_t>> entries_;  // 0, 2 × chunk, or 2 × table + 1
};

inline void Starts::enter(Store<StartTable>& tables,
                          Offset offset,
                          Offset other,
                          ChunkId id) noexcept {
  std::atomic<std::uint32_t>& entry = entries_[offset / StartTable::kSpan];
  const std::uint32_t now = entry.load(kAcquire);
  if (now == 0) {
    entry.store(2 * id, kRelease);
    return;
  }
  if ((now & 1) == 0) {  // the chunk that had the span for itself starts at `other`
    const std::uint32_t fresh = tables.take();
    StartTable& table = tables[fresh];
    slot(table, other).store(now / 2, kRelease);
    slot(table, offset).store(id, kRelease);
    table.count = 2;
    entry.store(2 * fresh + 1, kRelease);
    return;
  }
  StartTable& table = tables[now / 2];
  slot(table, offset).store(id, kRelease);
  ++table.count;
}

inline void Starts::erase(Store<StartTable>& tables, Offset offset) noexcept {
  std::atomic<std::uint32_t>& entry = entries_[offset / StartTable::kSpan];
  const std::uint32_t now = entry.load(kAcquire);
  if ((now & 1) == 0) {
    entry.store(0, kRelease);
    return;
  }
  StartTable& table = tables[now / 2];
  slot(table, offset).store(0, kRelease);
  if (--table.count == 0) {
    entry.store(0, kRelease);
    tables.release(now / 2);
  }
}

}  // namespace memcfg
