// The pages of a workspace: the one in use, those that belong to their blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "memcfg/types.hpp"

namespace memcfg {

// Metadata of what lies where; no lock, and nobody's memory but its user's.
//
//     held == live records + those that were overwritten and not given back,
//     records of this lap end at or before offset <= size,
//     records of the lap before begin at or behind the last one of this lap
class WorkspacePage {
 public:
  struct Record {
    Offset offset = 0;  // of the first byte
    Bytes size = 0;     // as asked for
    std::uint64_t generation = 0;
    std::size_t mark = 0;  // its user's
    bool live = true;
  };
  enum class Outcome { allocated, full, blocked };

  WorkspacePage(std::byte* base, Bytes size) : base_(base), size_(size) {}

  std::byte* base() const noexcept { return base_; }
  Bytes size() const noexcept { return size_; }
  Offset offset() const noexcept { return offset_; }
  std::size_t live() const noexcept { return live_; }
  Bytes live_bytes() const noexcept { return live_bytes_; }  // each rounded up
  Bytes requested() const noexcept { return requested_; }    // of those that are alive
  std::size_t held() const noexcept { return live_ + overwritten_; }
  bool contains(const void* address) const noexcept {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= base_ && byte < base_ + size_;
  }

  // Hands out the next bytes; the record's offset is set. full: there are none before
  // the end. blocked: somebody of the lap before is alive there, who is not to be
  // passed
  // (`over` is false, or it is of the record's own generation). Nothing has changed
  // then. Throws std::bad_alloc; likewise.
  Outcome take(Record record, Bytes alignment, bool over);
  // What was handed out last. Pre: take() was Outcome::allocated.
  void* last() const noexcept { return base_ + now_.back().offset; }
  // Whether it could from the front of the page, if nobody were alive.
  bool could_take(Bytes size, Bytes alignment) const noexcept;

  // The record of the block that begins there; null: none that is alive.
  const Record* find(const void* address) const noexcept;

  // One block goes: that of the record, or one that was overwritten.
  void end(const Record& record) noexcept;
  bool end_overwritten() noexcept;  // false: there is none

  // Gives the space of the blocks at the end back that have gone.
  void recede() noexcept;

  // The front again. Whoever is alive is overwritten from now on.
  void rewind() noexcept;
  // The front again. Whoever is alive is in the way from now on. Throws std::bad_alloc.
  void wrap();
  // Goes on at a later place. Pre: offset() <= offset <= size().
  void skip_to(Offset offset) noexcept { offset_ = offset; }

  // The end of the last live record; all of the page if somebody was overwritten.
  Offset end_of_live() const noexcept;
  // The page is so large from now on. Pre: size >= end_of_live().
  void resize(Bytes size) noexcept;

  template <typename Act>
  void each_live(Act act) const {
    for (const Record& record : now_) {
      if (record.live) act(record);
    }
    for (std::size_t i = next_; i < before_.size(); ++i) {
      if (before_[i].live) act(before_[i]);
    }
  }

  void check() const;  // throws invariant_broken

 private:
  using Records = std::vector<Record>;

  Offset end_of(const Record& record) const noexcept;
  Offset start_at(Offset offset, Bytes alignment) const noexcept;
  bool fits(Offset start, Bytes size) const noexcept;
  bool is_clear(Offset from, Offset to, std::uint64_t over) const noexcept;
  std::size_t gaps(Offset from, Offset to) const noexcept;
  void pass(Offset from, Offset to) noexcept;
  void gone(const Record& record) noexcept;
  Record* search(const void* address) noexcept;

  std::byte* base_;
  Bytes size_;
  Offset offset_ = 0;
  std::size_t live_ = 0;
  Bytes live_bytes_ = 0;
  Bytes requested_ = 0;
  std::size_t overwritten_ = 0;
  Records now_;           // of this lap, by offset
  Records before_;        // of the lap before, by offset; what is passed is left out:
  std::size_t next_ = 0;  // the first that is not
};

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
