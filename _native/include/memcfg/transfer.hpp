// A copy between memory and a space, on a lane, outside of any program.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "memcfg/lane.hpp"
#include "memcfg/space.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Starts with the object. Whoever made it leaves the memory and the space's bytes alone
// until it has ended; any thread may wait.
class Transfer : private NoCopy {
 public:
  // From the space to memory, or from memory to the space. Throws std::invalid_argument
  // if [offset, offset + size) does not lie inside.
  static std::unique_ptr<Transfer> read(std::shared_ptr<Space> space,
                                        std::shared_ptr<Lane> lane,
                                        Offset offset,
                                        void* to,
                                        Bytes size);
  static std::unique_ptr<Transfer> write(std::shared_ptr<Space> space,
                                         std::shared_ptr<Lane> lane,
                                         Offset offset,
                                         const void* from,
                                         Bytes size);
  ~Transfer();  // waits

  bool done() const noexcept { return done_; }
  // Throws what the copy threw (file_error), as often as it is called, and
  // std::runtime_error if the process was forked meanwhile.
  void wait();

 private:
  Transfer(std::shared_ptr<Space> space,
           std::shared_ptr<Lane> lane,
           Offset offset,
           void* to,
           const void* from,
           Bytes size);
  static void run(void* transfer, std::size_t index) noexcept;

  const std::shared_ptr<Space> space_;
  const std::shared_ptr<Lane> lane_;
  const Offset offset_;
  void* const to_;          // null: it writes
  const void* const from_;  // null: it reads
  const Bytes size_;
  std::atomic<bool> done_{false};
  std::exception_ptr failure_;
  std::uint64_t number_ = 0;
};

}  // namespace memcfg
