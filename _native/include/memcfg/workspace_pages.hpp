// The pages of a workspace: the one in use, those that belong to their blocks.
#pragma once

#include <cstdint>
#include <map>

#include "memcfg/types.hpp"
#include "memcfg/workspace_page.hpp"

namespace memcfg {

// Metadata; no lock, and nobody is called. What is to be given back is moved to
// `garbage`, a move that needs no memory.
//
//     a page that is retired holds blocks, or somebody is trimming it;
//     live_elsewhere == live bytes of the retired ones; retired bytes <= reserved
class WorkspacePages {
 public:
  enum class State { current, spare, retired };
  struct Entry {
    Entry(std::byte* base, Bytes size) : page(base, size), allocated(size) {}
    WorkspacePage page;
    Bytes allocated;  // bytes that are left of it
    State state = State::current;
    std::uint64_t retired_at = 0;  // generation
    bool waiting = false;          // nobody has tried to trim it
    bool busy = false;             // somebody is trimming it
    Entry* older = nullptr;        // of those that wait
    Entry* younger = nullptr;
  };
  using Entries = std::map<std::uintptr_t, Entry>;  // by address

  static void put(Entries& entries, std::byte* base, Bytes size);  // std::bad_alloc

  Entry* page() const noexcept { return page_; }  // null: none
  Entry* find(const void* address) const noexcept;
  const Entries& all() const noexcept { return entries_; }
  Bytes reserved() const noexcept { return reserved_; }  // each page rounded up
  Bytes retired() const noexcept { return retired_; }    // likewise
  Bytes live_elsewhere() const noexcept { return live_elsewhere_; }

  // The first of `fresh` is the page from now on. Pre: there is none.
  void use(Entries& fresh, Offset from) noexcept;
  bool use_spare(Bytes size,
                 Offset from) noexcept;  // false: there is none of that size

  // The page belongs to its blocks.
  void retire(std::uint64_t generation) noexcept;
  // It does, or goes where it holds none.
  void drop_page(std::uint64_t generation, Entries& garbage) noexcept;
  void drop_spare(Entries& garbage) noexcept;
  // A block of the page has gone: where it was the last, the page becomes the spare
  // one, if it is of that size and there is none, or goes.
  void recycle(Entry& entry, Bytes size, Entries& garbage) noexcept;
  // A block of a retired page has gone.
  void gone(const Entry& entry, Bytes size) noexcept;

  // The page that has been retired longest, if it was before a generation and nobody
  // has tried yet to give back what lies behind its last live block. It is so short
  // from now on. Null: none.
  bool waits(std::uint64_t before) const noexcept {  // whether there may be one
    return oldest_ != nullptr && oldest_->retired_at < before;
  }
  Entry* begin_trim(std::uint64_t before) noexcept;
  void end_trim(Entry& entry, bool done) noexcept;

  void check() const;  // throws invariant_broken

 private:
  void wait(Entry& entry) noexcept;
  void wait_no_more(Entry& entry) noexcept;
  void drop(Entry& entry, Entries& garbage) noexcept;

  mutable Entries entries_;
  Entry* page_ = nullptr;
  Entry* spare_ = nullptr;   // whose blocks have all gone
  Entry* oldest_ = nullptr;  // of those that wait to be trim
  Entry* youngest_ = nullptr;
  Bytes reserved_ = 0;
  Bytes retired_ = 0;
  Bytes live_elsewhere_ = 0;
};

}  // namespace memcfg
