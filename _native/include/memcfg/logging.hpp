// Writes what goes through to a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "memcfg/adaptor.hpp"
#include "memcfg/log_file.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

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
