#include "memcfg/transfer.hpp"

#include <stdexcept>
#include <utility>

namespace memcfg {

Transfer::Transfer(std::shared_ptr<Space> space,
                   std::shared_ptr<Lane> lane,
                   Offset offset,
                   void* to,
                   const void* from,
                   Bytes size)
    : space_(std::move(space)),
      lane_(std::move(lane)),
      offset_(offset),
      to_(to),
      from_(from),
      size_(size) {
  const Bytes end = space_->size();
  if (offset > end || size > end - offset) {
    throw std::invalid_argument("the bytes to copy do not lie inside of the space");
  }
  number_ = lane_->submit({&run, this, 0});
}

std::unique_ptr<Transfer> Transfer::read(std::shared_ptr<Space> space,
                                         std::shared_ptr<Lane> lane,
                                         Offset offset,
                                         void* to,
                                         Bytes size) {
  return std::unique_ptr<Transfer>(
      new Transfer(std::move(space), std::move(lane), offset, to, nullptr, size));
}

std::unique_ptr<Transfer> Transfer::write(std::shared_ptr<Space> space,
                                          std::shared_ptr<Lane> lane,
                                          Offset offset,
                                          const void* from,
                                          Bytes size) {
  return std::unique_ptr<Transfer>(
      new Transfer(std::move(space), std::move(lane), offset, nullptr, from, size));
}

Transfer::~Transfer() {
  lane_->settle(number_);
}

void Transfer::wait() {
  lane_->wait(number_);
  if (failure_) std::rethrow_exception(failure_);
}

void Transfer::run(void* transfer, std::size_t) noexcept {
  auto& self = *static_cast<Transfer*>(transfer);
  try {
    if (self.from_ == nullptr) {
      self.space_->read(self.offset_, self.to_, self.size_);
    } else {
      self.space_->write(self.offset_, self.from_, self.size_);
    }
  } catch (...) {
    self.failure_ = std::current_exception();
  }
  self.done_ = true;
}

}  // namespace memcfg
