#include "memcfg/file_claim.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "memcfg/error.hpp"
#include "memcfg/system.hpp"

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

}  // namespace memcfg
