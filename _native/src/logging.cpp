#include "memcfg/logging.hpp"

#include <new>
#include <utility>

namespace memcfg {

LoggingResource::LoggingResource(std::shared_ptr<Resource> upstream,
                                 int file,
                                 std::function<void()> notice)
    : Adaptor(std::move(upstream), Ledger::Tags::held, &log_),
      notice_(std::move(notice)),
      log_(file) {}

void* LoggingResource::allocate(const Request& request) {
  require_valid(request);
  try {
    void* const address = take(request);
    tell_of_trouble();
    return address;
  } catch (const std::bad_alloc&) {
    ledger_.hold([&](const auto&) { log_.failed(request.size); });
    tell_of_trouble();
    throw;
  }
}

void LoggingResource::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  tell_of_trouble();
  upstream_->deallocate(address, size);
}

bool LoggingResource::resize(void* address, Bytes size, Bytes new_size) {
  const bool resized = Adaptor::resize(address, size, new_size);
  tell_of_trouble();
  return resized;
}

void LoggingResource::tell_of_trouble() noexcept {
  if (log_.take_trouble() && notice_) notice_();
}

int LoggingResource::flush() {
  return ledger_.hold([this](const auto&) { return log_.flush(); });
}

int LoggingResource::close() {
  return ledger_.hold([this](const auto&) { return log_.close(); });
}

void LoggingResource::write_through() {
  ledger_.hold([this](const auto&) { log_.write_through(); });
}

std::uint64_t LoggingResource::lost() const {
  return ledger_.hold([this](const auto&) { return log_.lost(); });
}

int LoggingResource::error() const {
  return ledger_.hold([this](const auto&) { return log_.error(); });
}

}  // namespace memcfg
