#include "memcfg/file_resource.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

constexpr int kTries = 100;  // while others replace the file again and again
constexpr Bytes kMaxBytes = std::numeric_limits<std::int64_t>::max();  // off_t
constexpr unsigned kAnybody = 0666;  // permissions, less what the umask takes away
constexpr unsigned kOwner = 0600;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, slash == 0 ? 1 : slash);
}

// No other thread has it; another process that ended badly may have left one.
std::string neighbour(const std::string& folder) {
  static std::atomic<unsigned> count{0};
  return folder + "/.memcfg-" + std::to_string(process_id()) + "-" +
         std::to_string(count++);
}

std::string number_of(Bytes bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

}  // namespace

FileClaim::FileClaim(const FileOperations& files, FileOptions options, IsOurs is_ours)
    : files_(files),
      options_(std::move(options)),
      folder_(folder_of(options_.resolved_path)),
      is_ours_(is_ours),
      lock_(files),
      data_(files),
      replaced_(files) {
  if (options_.size.value_or(0) > kMaxBytes) fail(EFBIG);
  try {
    for (int left = kTries; !try_claim(); --left) {
      if (left == 0) fail(EAGAIN, "it is replaced again and again");
    }
    space_ = require_space();
  } catch (...) {
    undo();
    throw;
  }
}

FileClaim::~FileClaim() {
  if (!committed_) undo();
}

// False: somebody else was faster, and the file is another one now.
bool FileClaim::try_claim() {
  const int result = files_.look_at(options_.resolved_path.c_str(), status_);
  if (result == -ENOENT) return make();
  require(result);
  require_regular();
  return take_existing();
}

bool FileClaim::take_existing() {
  const int file = files_.open(options_.resolved_path.c_str(), Opening::existing, 0);
  if (file == -ENOENT || file == -ELOOP) return false;
  require(file);
  lock_.reset(file);
  take_lock();
  require(files_.look(file, status_));
  require_regular();
  if (!is_at(options_.resolved_path)) return false;
  if (options_.remove && !options_.overwrite) {
    fail(EEXIST, "a file that was there is not deleted, unless it is overwritten");
  }
  decide_size();
  if (!options_.overwrite) return open_data(options_.resolved_path);
  replace();
  return true;
}

bool FileClaim::make() {
  require_folder();
  if (!options_.size) {
    throw std::invalid_argument("there is no file " + options_.path +
                                " to take the length from");
  }
  origin_ = Origin::made;
  if (make_fresh(options_.resolved_path, kAnybody)) {
    decide_size();
    if (open_data(options_.resolved_path)) return true;
  }
  origin_ = Origin::found;
  mine_ = false;
  return false;
}

// The new file is locked before it takes the place of the old one, whose lock is held
// until then: at no moment could another owner come in between.
void FileClaim::replace() {
  old_ = status_;
  replaced_.swap(lock_);
  origin_ = Origin::replacing;
  do {
    temporary_ = neighbour(folder_);
  } while (!make_fresh(temporary_, kOwner));
  if (!open_data(temporary_)) fail(ENOENT, "the file that was to replace it has gone");
}

// Post: the fresh file is locked. False: there is one already.
bool FileClaim::make_fresh(const std::string& path, unsigned mode) {
  const int file = files_.open(path.c_str(), Opening::fresh, mode);
  if (file == -EEXIST) return false;
  if (file < 0) fail(-file, "a new file in " + folder_);
  lock_.reset(file);
  status_ = {};
  mine_ = true;
  take_lock();
  require(files_.look(file, status_));
  return true;
}

void FileClaim::take_lock() {
  const int result = files_.lock(lock_.get());
  if (result != -EWOULDBLOCK) return require(result);
  if (origin_ == Origin::made) mine_ = false;  // who has the lock has the file
  fail_for_owner();
}

void FileClaim::fail_for_owner() const {
  FileStatus file;
  const bool ours = files_.look(lock_.get(), file) == 0 && is_ours_(file);
  fail(EWOULDBLOCK,
       ours ? "the file has an owner in this process: delete the array and its views, "
              "or close the file"
            : "the file has an owner, another process or a lock that this one took by "
              "other means");
}

// A second descriptor, which the lock does not depend on. False: the file has gone.
bool FileClaim::open_data(const std::string& path) {
  const int file = files_.open(path.c_str(), Opening::existing, 0);
  if (file == -ENOENT || file == -ELOOP) return false;
  require(file);
  data_.reset(file);
  FileStatus status;
  require(files_.look(file, status));
  return same_file(status, status_);
}

void FileClaim::decide_size() {
  const Bytes now = status_.size;
  size_ = options_.size.value_or(now);
  const std::string has = options_.path + " has " + number_of(now);
  if (size_ == 0) throw std::invalid_argument(has + ": say how many it shall have");
  if (size_ % options_.unit != 0) {
    throw std::invalid_argument(number_of(size_) + " of " + options_.path +
                                " are no multiple of " + number_of(options_.unit));
  }
  if (options_.overwrite) return;
  if (size_ < now) {
    throw std::invalid_argument(
        has + ", more than the " + std::to_string(size_) +
        " asked for: it is not truncated, unless it is overwritten");
  }
  old_size_ = now;
}

// What is certain not to fit is refused before anything is taken.
DiskSpace FileClaim::require_space() const {
  DiskSpace space;
  files_.space(data_.get(), space);  // where it fails, nothing is known
  if (missing() > space.free) fail_for_space(ENOSPC, space);
  return space;
}

Bytes FileClaim::missing() const noexcept {
  return size_ - std::min(size_, status_.allocated);
}

void FileClaim::allocate() {
  allocated_ = true;
  int result = files_.allocate(data_.get(), size_);
  if (result == -EOPNOTSUPP) {
    result = missing() == 0 ? 0 : files_.allocate_slowly(data_.get(), size_);
  }
  if (result == -ENOSPC || result == -EDQUOT) fail_for_space(-result, space_);
  require(result);
}

void FileClaim::commit() {
  lengthen();
  if (origin_ == Origin::replacing) {
    take_over();
    flush();
    require(files_.rename(temporary_.c_str(), options_.resolved_path.c_str()));
    mine_ = false;  // from here on there is nothing to go back to
    replaced_.reset();
  } else if (origin_ == Origin::made) {
    flush();
  }
  if (origin_ == Origin::made) flush_folder();
  committed_ = true;
  if (origin_ == Origin::replacing) flush_folder();  // what fails is told, no more
}

// Owner first: a change of it may take permissions away.
void FileClaim::take_over() const {
  if (status_.user != old_.user || status_.group != old_.group) {
    const int result = files_.set_owner(lock_.get(), old_.user, old_.group);
    if (result < 0) fail(-result, "a new file would not have the owner of this one");
  }
  require(files_.set_mode(lock_.get(), old_.mode));
}

void FileClaim::lengthen() {
  FileStatus now;
  require(files_.look(data_.get(), now));
  if (now.size < size_) require(files_.set_size(data_.get(), size_));
}

void FileClaim::flush() const {
  require(files_.flush(data_.get()));
}

// Some folders may be written but not read, and some file systems flush no folders;
// both keep the entry with the file.
void FileClaim::flush_folder() const {
  FileHandle folder(files_);
  const int file = files_.open(folder_.c_str(), Opening::folder, 0);
  if (file == -EACCES) return;
  require(file);
  folder.reset(file);
  const int result = files_.flush(file);
  if (result != -EINVAL && result != -EOPNOTSUPP) require(result);
}

void FileClaim::remove() const {
  FileStatus there;
  const char* const path = options_.resolved_path.c_str();
  int result = files_.look_at(path, there);
  if (result == 0 && same_file(there, status_)) result = files_.remove(path);
  if (result != -ENOENT && result != -ENOTDIR) require(result);
}

void FileClaim::undo() noexcept {
  const bool replacing = origin_ == Origin::replacing;
  const std::string& path = replacing ? temporary_ : options_.resolved_path;
  if (mine_) {
    const bool known = files_.look(lock_.get(), status_) == 0;
    if (known && is_at(path)) files_.remove(path.c_str());
  } else if (allocated_ && origin_ == Origin::found) {
    release_disk();
  }
}

// Setting the length frees the disk behind it, even where the length stays the same.
void FileClaim::release_disk() noexcept {
  FileStatus now;
  if (files_.look(data_.get(), now) != 0) return;
  if (old_size_ <= now.size && now.size <= size_) {
    files_.set_size(data_.get(), old_size_);
  }
}

bool FileClaim::is_at(const std::string& path) const noexcept {
  FileStatus there;
  return files_.look_at(path.c_str(), there) == 0 && same_file(there, status_);
}

void FileClaim::require_regular() const {
  if (status_.kind == FileStatus::folder) fail(EISDIR);
  if (status_.kind != FileStatus::regular) fail(EINVAL, "it is no regular file");
}

void FileClaim::require_folder() const {
  FileStatus folder;
  const int result = files_.look_at(folder_.c_str(), folder);
  if (result < 0) fail(-result, "the folder " + folder_);
  if (folder.kind != FileStatus::folder) fail(ENOTDIR, folder_);
}

void FileClaim::require(int result) const {
  if (result < 0) fail(-result);
}

void FileClaim::fail_for_space(int error, const DiskSpace& space) const {
  std::string words = number_of(missing()) + " more are needed";
  if (space.available != kNoLimit) {
    words += ", " + std::to_string(space.available) + " are free";
  }
  fail(error, words);
}

void FileClaim::fail(int error, const std::string& words) const {
  const std::string text = std::generic_category().message(error);
  throw file_error(error, words.empty() ? text : text + ": " + words, options_.path);
}

// All files of the process: what a fork and the end of the process do to them. One
// object, made at first need and never destroyed.
class FileRegistry {
 public:
  static FileRegistry& instance() {
    static FileRegistry* const registry = new FileRegistry;
    return *registry;
  }

  // Whether there is a file; then there is a registry.
  static bool needed() noexcept { return count_ > 0; }

  void add(FileResource& file) {
    const ForkLock lock(mutex_);
    files_.push_back(&file);
    ++count_;
  }

  void remove(FileResource& file) noexcept {
    const ForkLock lock(mutex_);
    files_.erase(std::find(files_.begin(), files_.end(), &file));
    --count_;
  }

  // Calls `act()` while nobody else touches a file, and no fork is on.
  template <typename Act>
  void alone(Act act) noexcept {
    const ForkLock lock(mutex_);
    act();
  }

  template <typename Act>
  void each(Act act) noexcept {
    alone([&] {
      for (FileResource* file : files_) act(*file);
    });
  }

 private:
  FileRegistry() {
    pthread_atfork(nullptr, nullptr, [] { instance().after_fork(); });
    std::atexit([] { instance().each([](FileResource& it) { it.at_exit(); }); });
  }

  // Only the forking thread is there, and no lock was held.
  void after_fork() noexcept {
    for (FileResource* file : files_) file->after_fork();
  }

  static inline std::atomic<int> count_{0};
  std::mutex mutex_;
  std::vector<FileResource*> files_;
};

FilePages::FilePages(const FileOperations& files,
                     const FileClaim& claim,
                     const System& metadata)
    : BorrowedMetadata(metadata),
      files_(files),
      size_(round_up(claim.size(), host_system().page_size())) {
  const int result = files_.map(claim.file(), size_, address_);
  if (result < 0) claim.fail(-result, "addresses for " + std::to_string(size_));
}

FileResource::Entry::Entry(FileResource& file) : file_(file) {
  FileRegistry::instance().add(file_);
}

FileResource::Entry::~Entry() {
  FileRegistry::instance().remove(file_);
}

// The end grows that has to grow less.
void FileResource::Used::note(Offset first, Offset last) noexcept {
  if (last <= low || first >= high) return;
  if (last - low <= high - first) {
    low = last;
    high = std::max(low, high);
  } else {
    high = std::max(low, first);
  }
}

FileResource::FileResource(FileOptions options,
                           const FileOperations& files,
                           const System& metadata)
    : files_(files),
      owner_(process_id()),
      name_(options.path),
      claim_(std::in_place, files, std::move(options), is_ours),
      size_(claim_->size()),
      usable_(std::max(round_down(size_, kAlignment), kAlignment)),
      pages_(std::in_place, files, *claim_, metadata),
      address_(pages_->address()),
      entry_(*this),
      tail_(pages_->size() - usable_),
      used_{std::min(claim_->old_size(), usable_), usable_} {
  try {
    claim_->allocate();
    heap_ = std::make_unique<Heap>(*pages_);
    const Bytes pages = pages_->size();
    const ChunkId all = heap_->allocate(pages, kAlignment, Lifetime::unknown).id;
    heap_->release((*heap_)[all]);
    if (tail_ > 0) heap_->allocate(tail_, kAlignment, Lifetime::short_lived);
    claim_->commit();
  } catch (const AllocationFailed&) {  // a heap that asks for what there is cannot fail
    end();
    throw invariant_broken("a heap cannot allocate the pages of its file");
  } catch (...) {
    end();
    throw;
  }
}

FileResource::~FileResource() {
  end();
}

void FileResource::end() noexcept {
  try {
    abandon();
  } catch (const std::exception&) {  // nobody is left to be told
    release_file();
  }
}

bool FileResource::is_ours(const FileStatus& file) noexcept {
  bool found = false;
  if (!FileRegistry::needed()) return found;
  FileRegistry::instance().each([&](const FileResource& each) {
    found = found || (each.claim_ && each.owned() && each.claim_->is(file));
  });
  return found;
}

bool FileResource::owned() const noexcept {
  return owner_ == process_id();
}

void FileResource::require_file() const {
  if (!pages_) throw std::invalid_argument("the file is closed");
  if (!private_) return;
  throw std::runtime_error(
      "in the child of a fork the memory of a file is the child's own");
}

void FileResource::flush() {
  const std::lock_guard<std::mutex> lock(file_mutex_);
  require_file();
  const int result = files_.flush_pages(address_, size_);
  if (result < 0) claim_->fail(-result);
  claim_->flush();
}

Bytes FileResource::drop(Bytes from, Bytes size) {
  const std::lock_guard<std::mutex> lock(file_mutex_);
  require_file();
  if (from > size_ || size > size_ - from) {
    throw std::invalid_argument("the file has no such bytes");
  }
  const Bytes page = pages_->page_size();
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

// Throws file_error; it is not closed then, and the heap, which is in its pages, stays.
void FileResource::close_file(std::unique_ptr<Heap>& heap) {
  const std::lock_guard<std::mutex> lock(file_mutex_);
  if (!pages_) return;
  if (claim_->committed() && owned()) {
    if (claim_->options().remove) {
      claim_->remove();
    } else {
      const int result = files_.flush_pages(address_, size_);
      if (result < 0) claim_->fail(-result);
      claim_->flush();
    }
  }
  heap.reset();
  release_file();
}

// Unlocked by hand: a program that another thread is just starting may still have the
// descriptor, for as long as it takes to begin.
void FileResource::release_file() noexcept {
  FileRegistry::instance().alone([this] {
    pages_.reset();
    if (claim_ && claim_->committed() && owned()) claim_->unlock();
    claim_.reset();
  });
}

void FileResource::after_fork() noexcept {
  new (&file_mutex_) std::mutex;  // another thread of the parent may have held it
  if (!pages_) return;
  claim_->close_lock();
  exclusive_ = false;
  if (claim_->options().shared) return;
  private_ = true;
  exclusive_ = files_.map_privately(claim_->file(), address_, pages_->size()) == 0;
}

void FileResource::at_exit() noexcept try {
  if (claim_ && claim_->options().remove && claim_->committed() && owned())
    claim_->remove();
} catch (const std::exception&) {  // nobody is left to be told
}

void FileResource::drop_pages() noexcept {
  if (pages_ && !private_) files_.drop_pages(address_, pages_->size());
}

// Makes no registry: it is called with locks held that a fork may wait for.
void FileResource::drop_all() noexcept {
  if (!FileRegistry::needed()) return;
  FileRegistry::instance().each([](FileResource& file) { file.drop_pages(); });
}

// What a block takes of the heap: whole lines, but the last one of the file.
Bytes FileResource::chunk_bytes(Bytes size) const noexcept {
  return std::min(align_up(size), usable_);
}

Offset FileResource::offset_of(const void* address) const noexcept {
  return static_cast<Offset>(static_cast<const std::byte*>(address) -
                             static_cast<const std::byte*>(address_));
}

void FileResource::require_open() const {
  if (heap_ == nullptr) throw std::invalid_argument("the file is closed");
  if (exclusive_) return;
  throw std::runtime_error("in the child of a fork the file is still its parent's");
}

void* FileResource::allocate(const Request& request) {
  require_valid(request);
  bool zero = request.zeroed;
  void* const address = allocate_bytes(request, zero);
  try {
    ledger_.add(address, request, align_up(request.size));
  } catch (...) {
    release_chunk(address);
    throw;
  }
  if (zero) std::memset(address, 0, request.size);
  return address;
}

// `zero`: whether the bytes are to be zero; post: whether they are to be made so.
void* FileResource::allocate_bytes(const Request& request, bool& zero) {
  try {
    const ForkLock lock(mutex_);
    require_open();
    if (request.size > size()) throw AllocationFailed{OutOfMemoryInfo::file_full};
    return allocate_in_heap(request, zero);
  } catch (const AllocationFailed&) {
    throw out_of_memory_error(*this, why_not(request.size), request.size);
  }
}

// Pre: the lock is held.
void* FileResource::allocate_in_heap(const Request& request, bool& zero) {
  const Bytes bytes = chunk_bytes(request.size);
  void* const address = find_chunk(bytes, request.alignment, request.lifetime);
  const Offset first = offset_of(address);
  const bool fresh = used_.low <= first && first + bytes <= used_.high;
  used_.note(first, first + bytes);
  zero = zero && !(fresh && owned());
  return address;
}

// The heap wants bytes to move a block to an aligned address. Where there are none
// left, the block may be aligned by itself: the first of a file does.
void* FileResource::find_chunk(Bytes bytes, Bytes alignment, Lifetime lifetime) {
  const auto address = [this](ChunkId id) { return (*heap_)[id].address.load(); };
  if (alignment > kAlignment) {
    try {
      const ChunkId id = heap_->allocate(bytes, alignment, lifetime).id;
      return reinterpret_cast<void*>(address(id));
    } catch (const AllocationFailed&) {
      lifetime = Lifetime::unknown;  // from the low end
    }
  }
  const ChunkId id = heap_->allocate(bytes, kAlignment, lifetime).id;
  if (alignment <= kAlignment || address(id) % alignment == 0) {
    return reinterpret_cast<void*>(address(id));
  }
  heap_->release((*heap_)[id]);
  throw AllocationFailed{OutOfMemoryInfo::fragmented};
}

OutOfMemoryInfo::Cause FileResource::why_not(Bytes size) const {
  if (size > std::min(usable_, this->size())) return OutOfMemoryInfo::file_full;
  const ForkLock lock(mutex_);
  const bool fits = heap_ != nullptr && chunk_bytes(size) <= heap_->spare();
  return fits ? OutOfMemoryInfo::fragmented : OutOfMemoryInfo::file_full;
}

void FileResource::release_chunk(void* address) noexcept {
  const ForkLock lock(mutex_);
  if (heap_ != nullptr) heap_->release((*heap_)[heap_->find(address)]);
}

void FileResource::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  release_chunk(address);
}

bool FileResource::resize(void* address, Bytes size, Bytes new_size) {
  require_valid_size(new_size);
  return ledger_.resize(
      address, size, new_size, [&] { return change(address, size, new_size); });
}

bool FileResource::change(void* address, Bytes size, Bytes new_size) {
  if (new_size > this->size()) return false;
  const Bytes before = chunk_bytes(size);
  const Bytes now = chunk_bytes(new_size);
  const ForkLock lock(mutex_);
  if (heap_ == nullptr) return false;
  Chunk& chunk = (*heap_)[heap_->find(address)];
  const Offset first = offset_of(address);
  try {
    if (now < before) return heap_->shrink(chunk, now);
    if (now > before && !heap_->extend(chunk, now)) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  used_.note(first, first + now);
  return true;
}

ResourceStats FileResource::stats() const {
  ResourceStats stats = ledger_.stats();
  stats.limit = align_up(size());
  const ForkLock lock(mutex_);
  stats.largest_free = 0;
  if (heap_ == nullptr) return stats;
  stats.reserved = stats.peak_reserved = stats.addresses = stats.limit;
  stats.free_bytes = stats.reserved - std::min(stats.reserved, stats.current);
  const Bytes largest = heap_->largest_spare();
  const bool empty = largest == usable_;  // then a block of the whole file fits
  stats.largest_free_chunk = std::min(stats.free_bytes, empty ? stats.limit : largest);
  stats.largest_free = empty ? size() : largest;
  stats.metadata += heap_->metadata();
  return stats;
}

void FileResource::check() const {
  ledger_.check();
  const ForkLock lock(mutex_);
  if (heap_ == nullptr) return;
  heap_->check();
  require(heap_->addresses() == usable_ + tail_, "the heap is not the whole file");
  require(heap_->allocated() >= tail_, "the end of the last page is free");
  require(used_.low <= used_.high && used_.high <= usable_, "the file's ends overlap");
}

bool FileResource::closed() const {
  const ForkLock lock(mutex_);
  return heap_ == nullptr;
}

void FileResource::close() {
  std::unique_ptr<Heap> heap;
  {
    const ForkLock lock(mutex_);
    if (heap_ != nullptr && heap_->allocated() > tail_) {
      throw still_held("the file cannot be closed: blocks of it, " +
                       std::to_string(heap_->allocated() - tail_) + " bytes, are out");
    }
    heap.swap(heap_);
  }
  try {
    close_file(heap);
  } catch (...) {
    const ForkLock lock(mutex_);
    if (heap_ == nullptr) heap_.swap(heap);
    throw;
  }
}

void FileResource::abandon() {
  std::unique_ptr<Heap> heap;
  {
    const ForkLock lock(mutex_);
    heap.swap(heap_);
  }
  close_file(heap);
}

}  // namespace memcfg
