#include "memcfg/logging.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "memcfg/system.hpp"

namespace memcfg {
namespace {

constexpr std::string_view kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";
constexpr std::int64_t kDay = 86400;  // seconds

// Asked for once: the system's own call takes a lock, and a log whose clock jumps when
// summer ends would have events that run backwards.
std::int64_t utc_offset() noexcept {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  return localtime_r(&now, &local) == nullptr ? 0 : local.tm_gmtoff;
}

std::int64_t microseconds() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Appends to a text of enough capacity.
class Writer {
 public:
  explicit Writer(char* at) : at_(at) {}
  char* at() const noexcept { return at_; }

  Writer& operator<<(std::string_view text) noexcept {
    at_ = std::copy(text.begin(), text.end(), at_);
    return *this;
  }
  Writer& number(std::uint64_t value, int base = 10) noexcept {
    at_ = std::to_chars(at_, at_ + 20, value, base).ptr;
    return *this;
  }
  Writer& digits(std::int64_t value, int count) noexcept {
    for (int digit = count; digit-- > 0; value /= 10) {
      at_[digit] = static_cast<char>('0' + value % 10);
    }
    at_ += count;
    return *this;
  }
  // Hours, minutes, seconds and microseconds of a day.
  Writer& time(std::int64_t since_midnight) noexcept {
    const std::int64_t seconds = since_midnight / 1000000;
    digits(seconds / 3600, 2) << ":";
    digits(seconds / 60 % 60, 2) << ":";
    digits(seconds % 60, 2) << ".";
    return digits(since_midnight % 1000000, 6);
  }

 private:
  char* at_;
};

}  // namespace

LogFile::LogFile(int file) noexcept
    : file_(file), owner_(process_id()), utc_offset_(utc_offset()) {
  waiting_ = static_cast<Bytes>(
      std::copy(kHeader.begin(), kHeader.end(), buffer_.begin()) - buffer_.begin());
}

void LogFile::row(std::string_view action, const void* address, Bytes size) noexcept {
  if (!open_) return;
  if (waiting_ >= kFull && lost_ == 0) write_out();
  if (lost_ > 0 || kBuffer - waiting_ < kRow) {
    ++lost_;  // and so are all that follow: a log has no gap
    return;
  }
  const std::int64_t now = microseconds() + utc_offset_ * 1000000;
  Writer row(buffer_.data() + waiting_);
  row.number(static_cast<std::uint64_t>(thread_id())) << ",";
  row.time(now % (kDay * 1000000)) << "," << action << ",0x";
  row.number(reinterpret_cast<std::uintptr_t>(address), 16) << ",";
  row.number(size) << ",0\n";
  waiting_ = static_cast<Bytes>(row.at() - buffer_.data());
  if (through_) write_out();
}

bool LogFile::is_owner() const noexcept {
  return process_id() == owner_;
}

void LogFile::write_out() noexcept {
  if (!is_owner()) {  // these rows are the parent's, or not to be written
    waiting_ = 0;
    return;
  }
  Bytes done = 0;
  error_ = 0;
  while (done < waiting_ && error_ == 0) {
    const ssize_t count = ::write(file_, buffer_.data() + done, waiting_ - done);
    if (count > 0) {
      done += static_cast<Bytes>(count);
    } else if (count == 0 || errno != EINTR) {
      error_ = count == 0 ? EIO : errno;
    }
  }
  if (error_ != 0) troubled_.store(true, std::memory_order_relaxed);
  const std::string_view text(buffer_.data(), done);
  const std::size_t end = text.rfind('\n');
  if (end != text.npos) whole_ = written_ + end + 1;
  written_ += done;
  waiting_ -= done;
  std::memmove(buffer_.data(), buffer_.data() + done, waiting_);
}

int LogFile::flush() noexcept {
  if (!open_ || !is_owner()) return 0;
  const int before = error_;
  write_out();
  if (lost_ > 0 && error_ == 0) error_ = before;  // why there is nothing behind
  if (error_ != 0) told_ = true;                  // the caller tells
  return error_;
}

int LogFile::close() noexcept {
  if (!open_) return 0;
  const int error = flush();
  if (error != 0) truncate_partial_row();  // never the file of a parent
  open_ = false;
  if (is_owner()) ::flock(file_, LOCK_UN);  // children of a fork may have the file
  const int closed = ::close(file_) == 0 ? 0 : errno;
  return error != 0 ? error : closed;
}

void LogFile::truncate_partial_row() noexcept {
  const char* const first = buffer_.data();
  lost_ += static_cast<std::uint64_t>(std::count(first, first + waiting_, '\n'));
  waiting_ = 0;
  if (whole_ < written_ && ::ftruncate(file_, static_cast<off_t>(whole_)) != 0) {
    return;  // not a file on a disk
  }
}

void LogFile::added(const void* address, const Request& request, Note&) noexcept {
  row("allocate", address, request.size);
}

void LogFile::removed(const void* address, Bytes size, const Note&) noexcept {
  row("free", address, size);
}

void LogFile::resized(const void* address, Bytes before, Bytes now, Note&) noexcept {
  row("free", address, before);
  row("allocate", address, now);
}

void LogFile::failed(Bytes size) noexcept {
  row("allocate failure", nullptr, size);
}

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
