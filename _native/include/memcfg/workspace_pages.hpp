// The pages of a workspace: the one in use, those that belong to their blocks.
#pragma once

#include <cstdint>
#include <map>

#include "memcfg/types.hpp"
#include "memcfg/workspace_page.hpp"

namespace memcfg {

// Books; no lock, and nobody is called. What is to be given back is moved to `garbage`,
// a move that needs no memory.
//
//     a page that is retired holds blocks, or somebody is cutting it;
//     live_elsewhere == live bytes of the retired ones; retired bytes <= reserved
class WorkspacePages {
 public:
  enum class State { current, spare, retired };
  struct Ground {
    Ground(std::byte* base, Bytes size) : page(base, size), taken(size) {}
    WorkspacePage page;
    Bytes taken;  // bytes that are left of it
    State state = State::current;
    std::uint64_t retired_at = 0;  // generation
    bool waiting = false;          // nobody has tried to cut it
    bool busy = false;             // somebody is cutting it
    Ground* older = nullptr;       // of those that wait
    Ground* younger = nullptr;
  };
  using Grounds = std::map<std::uintptr_t, Ground>;  // by address

  static void put(Grounds& grounds, std::byte* base, Bytes size);  // std::bad_alloc

  Ground* page() const noexcept { return page_; }  // null: none
  Ground* find(const void* address) const noexcept;
  const Grounds& all() const noexcept { return grounds_; }
  Bytes reserved() const noexcept { return reserved_; }  // each page rounded up
  Bytes retired() const noexcept { return retired_; }    // likewise
  Bytes live_elsewhere() const noexcept { return live_elsewhere_; }

  // The first of `fresh` is the page from now on. Pre: there is none.
  void use(Grounds& fresh, Offset from) noexcept;
  bool use_spare(Bytes size,
                 Offset from) noexcept;  // false: there is none of that size

  // The page belongs to its blocks.
  void retire(std::uint64_t generation) noexcept;
  // It does, or goes where it holds none.
  void drop_page(std::uint64_t generation, Grounds& garbage) noexcept;
  void drop_spare(Grounds& garbage) noexcept;
  // A block of the ground has gone: where it was the last, the ground becomes the spare
  // one, if it is of that size and there is none, or goes.
  void settle(Ground& ground, Bytes size, Grounds& garbage) noexcept;
  // A block of a retired page has gone.
  void gone(const Ground& ground, Bytes size) noexcept;

  // The page that has been retired longest, if it was before a generation and nobody
  // has tried yet to give back what lies behind its last live block. It is so short
  // from now on. Null: none.
  bool waits(std::uint64_t before) const noexcept {  // whether there may be one
    return oldest_ != nullptr && oldest_->retired_at < before;
  }
  Ground* begin_cut(std::uint64_t before) noexcept;
  void end_cut(Ground& ground, bool done) noexcept;

  void check() const;  // throws invariant_broken

 private:
  void wait(Ground& ground) noexcept;
  void wait_no_more(Ground& ground) noexcept;
  void drop(Ground& ground, Grounds& garbage) noexcept;

  mutable Grounds grounds_;
  Ground* page_ = nullptr;
  Ground* spare_ = nullptr;   // whose blocks have all gone
  Ground* oldest_ = nullptr;  // of those that wait to be cut
  Ground* youngest_ = nullptr;
  Bytes reserved_ = 0;
  Bytes retired_ = 0;
  Bytes live_elsewhere_ = 0;
};

}  // namespace memcfg
