// Writes what goes through to a file, as rows of text.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "memcfg/adaptor.hpp"
#include "memcfg/ledger.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Rows as RMM's logging_resource_adaptor writes them and its replay benchmark reads
// them: `Thread,Time,Action,Pointer,Size,Stream`. A change of size is a free and an
// allocation.
//
// Rows wait in a buffer, and longer while the file refuses them, which never stops
// anybody: the first row that does not fit any more is lost, and with it all that
// follow, as a log with a gap would be wrong. The child of a fork writes nothing: its
// blocks are of another memory. Every method but `take_trouble` needs the ledger's
// lock.
//
//     bytes of the file == written, what waits is in [0, waiting) of the buffer,
//     lost > 0 => error != 0.
class LogFile final : public Watcher {
 public:
  // Pre: a file that is open for writing, at its begin. It is closed with this.
  explicit LogFile(int file) noexcept;
  ~LogFile() { close(); }

  void added(const void* address, const Request& request, Note& note) noexcept override;
  void removed(const void* address, Bytes size, const Note& note) noexcept override;
  void resized(const void* address,
               Bytes before,
               Bytes now,
               Note& note) noexcept override;
  void failed(Bytes size) noexcept;

  // Hands what waits to the system: 0, or the error number why it does not take it.
  int flush() noexcept;
  // The same, once; nothing is logged any more. The file ends with a whole row.
  int close() noexcept;
  // From now on no row waits.
  void write_through() noexcept { through_ = true; }

  std::uint64_t lost() const noexcept { return lost_; }  // rows
  int error() const noexcept { return error_; }          // of the last write; 0: none
  // Whether a write has failed that nobody has heard of; true once.
  bool take_trouble() noexcept {
    return troubled_.load(std::memory_order_relaxed) && !told_.exchange(true);
  }

 private:
  static constexpr Bytes kFull = Bytes{64} << 10;  // so many are written out
  static constexpr Bytes kBuffer = 2 * kFull;      // the rest is for hard times
  static constexpr Bytes kRow = 128;               // bytes; no row is longer

  void row(std::string_view action, const void* address, Bytes size) noexcept;
  bool is_owner() const noexcept;
  void write_out() noexcept;
  void truncate_partial_row() noexcept;  // off what is no whole row

  const int file_;
  const std::int64_t owner_;       // the process whose log it is
  const std::int64_t utc_offset_;  // seconds by which local time is ahead
  bool open_ = true;
  bool through_ = false;
  int error_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t written_ = 0;  // bytes
  std::uint64_t whole_ = 0;    // of them: rows that are complete
  std::atomic<bool> troubled_{false};
  std::atomic<bool> told_{false};
  Bytes waiting_ = 0;
  std::array<char, kBuffer> buffer_;
};

// The order of the rows is that of TrackingResource's events. The file's errors are
// nobody's but those of `flush` and `close`; blocks come and go all the same.
class LoggingResource final : public Adaptor {
 public:
  // Takes an open file over, unless it throws. `notice` is called once if rows cannot
  // be written, with no lock held, by whatever thread found out; it must not throw.
  LoggingResource(std::shared_ptr<Resource> upstream,
                  int file,
                  std::function<void()> notice = nullptr);
  LoggingResource(std::shared_ptr<Resource> upstream, int file, void (*notice)())
      : LoggingResource(std::move(upstream), file, std::function<void()>(notice)) {}

  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool resize(void* address, Bytes size, Bytes new_size) override;

  // 0, or the error number why there are rows that the file does not take. Closing
  // ends the log; a second time does nothing.
  int flush();
  int close();
  void write_through();        // from now on no row waits
  std::uint64_t lost() const;  // rows
  int error() const;           // of the last write; 0: none

 private:
  void tell_of_trouble() noexcept;

  const std::function<void()> notice_;
  LogFile log_;  // guarded by the ledger's lock
};

}  // namespace memcfg
