// Values kept once each, for as long as somebody holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

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

}  // namespace memcfg
