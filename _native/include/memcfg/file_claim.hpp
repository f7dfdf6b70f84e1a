// A file that is ours alone: found or made, locked, as long as was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "memcfg/file_operations.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

struct FileOptions {
  std::string path;           // as errors name it
  std::string resolved_path;  // the same, absolute and without symbolic links
  std::optional<Bytes> size;  // bytes, at least 1; none: as long as the file is
  Bytes unit = 1;             // the length must be a multiple of so many bytes
  bool overwrite = false;     // a file that is there is replaced by zeros
  bool remove = false;        // it is removed when its owner closes it; one that was
                              // there is refused, unless it is overwritten
  bool shared = false;        // children of a fork write into the file too
};

// An open descriptor, or none.
class FileHandle : private NoCopy {
 public:
  explicit FileHandle(const FileOperations& files) noexcept : files_(&files) {}
  ~FileHandle() { reset(); }

  int get() const noexcept { return file_; }
  void swap(FileHandle& other) noexcept { std::swap(file_, other.file_); }
  void reset(int file = kNone) noexcept {
    if (file_ != kNone) files_->close(file_);
    file_ = file;
  }

 private:
  static constexpr int kNone = -1;
  const FileOperations* files_;
  int file_ = kNone;
};

// Whether a mapping of this process owns the file.
using IsOurs = bool (*)(const FileStatus& file) noexcept;

// Until `commit`, destroying a claim leaves the folder and the file as they were: a
// file that it made is removed, one that it found has the length that it had, and one
// that is to be replaced is still there. What was found keeps its bytes.
//
// The lock has a descriptor of its own, which the child of a fork closes at once; so
// the lock goes with its owner, however long children live and have the file mapped.
//
// What is not noexcept throws file_error; nothing has changed then, but where `commit`
// has replaced a file and cannot flush its folder: the new file stays, and is
// committed.
class FileClaim : private NoCopy {
 public:
  // Throws std::invalid_argument too: for a length that is none, for a file that is
  // longer, or when there is none to take the length from.
  FileClaim(const FileOperations& files, FileOptions options, IsOurs is_ours);
  ~FileClaim();

  const FileOptions& options() const noexcept { return options_; }
  Bytes size() const noexcept { return size_; }          // bytes of the claimed file
  Bytes old_size() const noexcept { return old_size_; }  // bytes that were there
  int file() const noexcept { return data_.get(); }
  bool is(const FileStatus& file) const noexcept { return same_file(file, status_); }
  bool committed() const noexcept { return committed_; }

  void allocate();  // disk for all of it, gaps included
  void commit();    // the file is as was asked for, and stays
  void flush() const;
  void remove() const;  // if the file is still where it was
  void unlock() const noexcept { files_.unlock(lock_.get()); }
  void close_lock() noexcept { lock_.reset(); }

  [[noreturn]] void fail(int error, const std::string& words = {}) const;

 private:
  enum class Origin { found, made, replacing };

  bool try_claim();
  bool take_existing();
  bool make();
  void replace();
  bool make_fresh(const std::string& path, unsigned mode);
  bool open_data(const std::string& path);
  void take_lock();
  [[noreturn]] void fail_for_owner() const;
  void decide_size();
  DiskSpace require_space() const;
  Bytes missing() const noexcept;  // bytes of the disk that it does not have yet
  void lengthen();
  void flush_folder() const;
  void take_over() const;
  void undo() noexcept;
  void release_disk() noexcept;
  bool is_at(const std::string& path) const noexcept;
  void require_regular() const;
  void require_folder() const;
  void require(int result) const;
  [[noreturn]] void fail_for_space(int error, const DiskSpace& space) const;

  const FileOperations& files_;
  const FileOptions options_;
  const std::string folder_;
  const IsOurs is_ours_;
  FileHandle lock_;
  FileHandle data_;
  FileHandle replaced_;    // the lock on the file that is replaced
  std::string temporary_;  // where the file that replaces it lies meanwhile
  Origin origin_ = Origin::found;
  bool mine_ = false;       // made, not committed, and no other owner came first
  bool allocated_ = false;  // or tried to
  bool committed_ = false;
  FileStatus status_;  // of the claimed file when it was locked
  DiskSpace space_;    // at that time
  FileStatus old_;     // of the file that is replaced
  Bytes size_ = 0;
  Bytes old_size_ = 0;
};

}  // namespace memcfg
