// Who is told of every change in a ledger, and what it keeps with a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace memcfg
