#include "memcfg/file_mapping.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"
#include "memcfg/system.hpp"

namespace memcfg {

// All mappings of the process: what a fork and the end of the process do to them. One
// object, made at first need and never destroyed.
class FileRegistry {
 public:
  static FileRegistry& instance() {
    static FileRegistry* const registry = new FileRegistry;
    return *registry;
  }

  // Whether there is a mapping; then there is a registry.
  static bool needed() noexcept { return count_ > 0; }

  void add(FileMapping& mapping) {
    const ForkLock lock(mutex_);
    mappings_.push_back(&mapping);
    ++count_;
  }

  void remove(FileMapping& mapping) noexcept {
    const ForkLock lock(mutex_);
    mappings_.erase(std::find(mappings_.begin(), mappings_.end(), &mapping));
    --count_;
  }

  // Calls `act()` while nobody else touches a mapping, and no fork is on.
  template <typename Act>
  void alone(Act act) noexcept {
    const ForkLock lock(mutex_);
    act();
  }

  template <typename Act>
  void each(Act act) noexcept {
    alone([&] {
      for (FileMapping* mapping : mappings_) act(*mapping);
    });
  }

 private:
  FileRegistry() {
    pthread_atfork(nullptr, nullptr, [] { instance().after_fork(); });
    std::atexit([] { instance().each([](FileMapping& it) { it.at_exit(); }); });
  }

  // Only the forking thread is there, and no lock was held.
  void after_fork() noexcept {
    for (FileMapping* mapping : mappings_) mapping->after_fork();
  }

  static inline std::atomic<int> count_{0};
  std::mutex mutex_;
  std::vector<FileMapping*> mappings_;
};

FilePages::FilePages(const FileOperations& files, const FileClaim& claim)
    : files_(files), size_(round_up(claim.size(), host_system().page_size())) {
  const int result = files_.map(claim.file(), size_, address_);
  if (result < 0) claim.fail(-result, "addresses for " + std::to_string(size_));
}

FileMapping::Entry::Entry(FileMapping& mapping) : mapping_(mapping) {
  FileRegistry::instance().add(mapping_);
}

FileMapping::Entry::~Entry() {
  FileRegistry::instance().remove(mapping_);
}

FileMapping::FileMapping(const FileOperations& files, FileOptions options)
    : files_(files),
      owner_(process_id()),
      claim_(std::in_place, files, std::move(options), is_ours),
      pages_(std::in_place, files, *claim_),
      address_(pages_->address()),
      size_(claim_->size()),
      old_size_(claim_->old_size()),
      entry_(*this) {
  claim_->allocate();
}

FileMapping::~FileMapping() {
  try {
    close();
  } catch (const std::exception&) {  // nobody is left to be told
    release();
  }
}

void FileMapping::commit() try {
  claim_->commit();
  committed_ = true;
} catch (...) {
  committed_ = claim_->committed();
  throw;
}

bool FileMapping::is_ours(const FileStatus& file) noexcept {
  bool found = false;
  if (!FileRegistry::needed()) return found;
  FileRegistry::instance().each([&](const FileMapping& mapping) {
    found = found || (mapping.claim_ && mapping.owned() && mapping.claim_->is(file));
  });
  return found;
}

bool FileMapping::owned() const noexcept {
  return owner_ == process_id();
}

void FileMapping::require_file() const {
  if (!pages_) throw std::invalid_argument("the file is closed");
  if (!private_) return;
  throw std::runtime_error(
      "in the child of a fork the memory of a file is the child's own");
}

void FileMapping::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_file();
  const int result = files_.flush_pages(address_, size_);
  if (result < 0) claim_->fail(-result);
  claim_->flush();
}

Bytes FileMapping::drop(Bytes from, Bytes size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_file();
  if (from > size_ || size > size_ - from) {
    throw std::invalid_argument("the file has no such bytes");
  }
  const Bytes page = host_system().page_size();
  const Bytes first = round_up(from, page);
  const bool to_end = from + size == size_;
  const Bytes last = to_end ? pages_->size() : round_down(from + size, page);
  if (first >= last) return 0;
  void* const start = static_cast<std::byte*>(address_) + first;
  const Bytes before = files_.resident(start, last - first);
  const int result = files_.drop_pages(start, last - first);
  if (result < 0) claim_->fail(-result);
  return before;
}

void FileMapping::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!pages_) return;
  if (committed_ && owned()) part();
  release();
}

void FileMapping::part() {
  if (claim_->options().remove) return claim_->remove();
  const int result = files_.flush_pages(address_, size_);
  if (result < 0) claim_->fail(-result);
  claim_->flush();
}

// Unlocked by hand: a program that another thread is just starting may still have the
// descriptor, for as long as it takes to begin.
void FileMapping::release() noexcept {
  FileRegistry::instance().alone([this] {
    pages_.reset();
    if (claim_ && committed_ && owned()) claim_->unlock();
    claim_.reset();
  });
}

void FileMapping::after_fork() noexcept {
  new (&mutex_) std::mutex;  // another thread of the parent may have held it
  if (!pages_) return;
  claim_->close_lock();
  exclusive_ = false;
  if (claim_->options().shared) return;
  private_ = true;
  exclusive_ = files_.map_privately(claim_->file(), address_, pages_->size()) == 0;
}

void FileMapping::at_exit() noexcept try {
  if (claim_ && claim_->options().remove && committed_ && owned()) claim_->remove();
} catch (const std::exception&) {  // nobody is left to be told
}

void FileMapping::drop_pages() noexcept {
  if (pages_ && !private_) files_.drop_pages(address_, pages_->size());
}

// Makes no registry: it is called with locks held that a fork may wait for.
void FileMapping::drop_all() noexcept {
  if (!FileRegistry::needed()) return;
  FileRegistry::instance().each([](FileMapping& mapping) { mapping.drop_pages(); });
}

}  // namespace memcfg
