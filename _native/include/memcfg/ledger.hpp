// A ledger: the metadata of blocks that somebody else's memory stands behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memcfg/forks.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Dropping one needs no memory. Whoever owns the object sees to it that one thread uses
// it at a time.
//
// Invariant: every value that is kept has a holder.
template <typename Value>
class Interned {
 public:
  struct Row {
    std::uint64_t number;  // no other value ever has it
    std::size_t holders;
  };
  using Rows = std::map<Value, Row, std::less<>>;
  using Held = typename Rows::value_type*;  // stays where it is

  // Adds a holder; true: nobody else holds the value. `key` is a range that Value can
  // be made from and compared with. Throws std::bad_alloc; nothing has changed then.
  template <typename Key>
  std::pair<Held, bool> take(const Key& key) {
    auto found = rows_.find(key);
    const bool fresh = found == rows_.end();
    if (fresh) {
      found = rows_.emplace(Value(key.begin(), key.end()), Row{numbers_ + 1, 0}).first;
      ++numbers_;
    }
    ++found->second.holders;
    return {&*found, fresh};
  }

  static void hold(Held held) noexcept { ++held->second.holders; }

  // Takes a holder away. The value comes back when that was the last one.
  typename Rows::node_type drop(Held held) noexcept {
    if (--held->second.holders > 0) return {};
    return rows_.extract(rows_.find(held->first));
  }

  const Rows& rows() const noexcept { return rows_; }

 private:
  Rows rows_;
  std::uint64_t numbers_ = 0;
};

// A call in a program, in words of whoever runs the program: two numbers here.
struct Frame {
  const void* code;
  std::int32_t offset;  // in the code, as f_lasti

  bool operator<(const Frame& other) const noexcept {
    return code != other.code ? code < other.code : offset < other.offset;
  }
  bool operator==(const Frame& other) const noexcept {
    return code == other.code && offset == other.offset;
  }
};

using Stack = std::vector<Frame>;  // the innermost call first
using Names = Interned<std::string>;
using Stacks = Interned<Stack>;

// What a watcher keeps with a block.
struct Note {
  std::uint64_t born = 0;  // number of the event that took it
  double seconds = 0;      // when that was
  std::int64_t thread = 0;
  Names::Held tag = nullptr;
  Stacks::Held stack = nullptr;
};

// Every method is called with the ledger's lock held: it takes no other, and calls
// nobody who might.
class Watcher {
 public:
  // May throw std::bad_alloc: the block is then not added.
  virtual void added(const void* address, const Request& request, Note& note) = 0;
  virtual void removed(const void* address, Bytes size, const Note& note) noexcept = 0;
  virtual void resized(const void* address,
                       Bytes before,
                       Bytes now,
                       Note& note) noexcept = 0;

 protected:
  ~Watcher() = default;
};

// A count that goes up and down. It is below zero in a region that frees more than it
// takes.
struct Tally {
  std::int64_t current = 0;
  std::int64_t peak = 0;   // highest `current`, at least 0
  std::int64_t total = 0;  // all that was ever added

  void add(std::int64_t count) noexcept;
  void remove(std::int64_t count) noexcept { current -= count; }
  // Takes in what happened in a region that ends.
  void absorb(const Tally& inner) noexcept;
};

struct Counters {
  Tally bytes;  // each block rounded up to kAlignment
  Tally blocks;

  void add(Bytes size) noexcept;
  void remove(Bytes size) noexcept;
  void resize(Bytes before, Bytes now) noexcept;  // of one block
  void absorb(const Counters& inner) noexcept;
};

// Which blocks are out, of what size, under which tag. Every method may be called from
// any thread, and calls nobody but the watcher.
//
//     sum of the blocks, rounded == all.bytes.current == sum of the tags,
//     requested <= all.bytes.current <= all.bytes.peak, reserved <= peak_reserved.
class Ledger {
 public:
  enum class Tags { held, ever };  // which tags are remembered

  explicit Ledger(Tags tags = Tags::held, Watcher* watcher = nullptr)
      : tags_kept_(tags), watcher_(watcher) {}

  // `reserved`: the bytes that were taken for it from below. Where the ledger still has
  // a block there, that went back to below without asking here: it is dropped, and its
  // size noted in `dropped`. Throws std::bad_alloc; nothing is added then.
  void add(void* address,
           const Request& request,
           Bytes reserved,
           Note note = {},
           Bytes* dropped = nullptr);

  // The bytes that were taken for it. Throws bad_free when there is no such block, or
  // one of another size; nothing has changed then.
  Bytes remove(void* address, Bytes size);

  bool has(const void* address) const noexcept;

  // Throws bad_free when there is no such block.
  Bytes size_of(const void* address) const;

  // Changes the size of a block if `change()`, called without the lock, is true; what
  // it gives is handed on. Meanwhile the block can be neither removed nor resized.
  // Throws bad_free as `remove` does, and what `change` throws; nothing has changed
  // then.
  template <typename Change>
  bool resize(void* address, Bytes size, Bytes new_size, Change change) {
    begin_resize(address, size);
    bool changed = false;
    try {
      changed = change();
    } catch (...) {
      finish_resize(address, size);
      throw;
    }
    finish_resize(address, changed ? new_size : size);
    return changed;
  }

  // By address. `now`: the clock of the watcher's notes, called with the lock held;
  // null: there are none.
  std::vector<LiveBlock> blocks(const std::function<double()>& now = nullptr) const;

  // Calls `act(blocks)` with the lock held; each block is its address and its entry.
  template <typename Act>
  auto hold(Act act) const {
    const ForkLock lock(mutex_);
    return act(entries_);
  }

  // Calls `act(address, size, reserved)` for every block. Pre: nobody else uses the
  // ledger any more.
  template <typename Act>
  void each(Act act) const {
    for (const auto& [address, entry] : entries_) {
      act(address, entry.size, entry.reserved);
    }
  }

  // What the ledger knows: blocks, peaks, counts, its own size. The rest is as in a
  // fresh ResourceStats.
  ResourceStats stats() const;
  void reset_peak();
  Owners owners() const;

  // Opens a region: counts from zero, until it is popped.
  void push();
  // Ends the region opened last and adds it to the one around it. Throws
  // std::invalid_argument when there is none.
  Counters pop();
  std::vector<std::pair<std::string, Counters>> by_tag() const;  // sorted by tag

  void check() const;  // throws invariant_broken

 private:
  using Rows = std::map<std::string, Counters, std::less<>>;
  struct Entry {
    Bytes size;
    Bytes reserved;
    Rows::iterator row;
    bool resizing = false;  // somebody is changing its size
    Note note = {};
  };
  using Entries = std::unordered_map<void*, Entry>;

  Entries::iterator find(void* address, Bytes size);  // throws bad_free
  void begin_resize(void* address, Bytes size);
  void finish_resize(void* address, Bytes size);
  void erase(Entries::iterator found) noexcept;
  Rows::iterator row_of(std::string_view tag);
  void drop_if_idle(Rows::iterator row) noexcept;
  Bytes metadata() const noexcept;

  const Tags tags_kept_;
  Watcher* const watcher_;
  mutable std::mutex mutex_;  // guards all below
  Entries entries_;
  Rows rows_;
  Counters all_;
  std::vector<Counters> regions_;  // the innermost last
  Bytes requested_ = 0;
  Bytes reserved_ = 0;
  Bytes peak_reserved_ = 0;
};

// A resource whose blocks a ledger of its own knows.
class LedgerResource : public Resource {
 public:
  Bytes size_of(const void* address) const final { return ledger_.size_of(address); }
  std::vector<LiveBlock> blocks() const override { return ledger_.blocks(); }
  ResourceStats stats() const override { return ledger_.stats(); }
  void reset_peak() override { ledger_.reset_peak(); }  // of blocks
  Owners owners() const final { return ledger_.owners(); }
  Bytes trim(Bytes) override { return 0; }  // nothing is kept that no block holds
  void check() const override { ledger_.check(); }

 protected:
  explicit LedgerResource(Ledger::Tags tags = Ledger::Tags::held,
                          Watcher* watcher = nullptr)
      : ledger_(tags, watcher) {}

  Ledger ledger_;
};

}  // namespace memcfg
