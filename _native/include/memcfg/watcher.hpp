// Who is told of every change in a ledger, and what it keeps with a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memcfg/interned.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

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
