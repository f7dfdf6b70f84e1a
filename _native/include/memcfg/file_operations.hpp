// Files, as far as memcfg needs them of the operating system. `file_operations.cpp` is
// the only file that calls it for them.
#pragma once

#include <cstdint>

#include "memcfg/types.hpp"

namespace memcfg {

struct FileStatus {
  enum Kind { regular, folder, other };
  Kind kind = other;
  std::uint64_t device = 0;  // these two tell a file from every other one
  std::uint64_t number = 0;
  Bytes size = 0;       // its length
  Bytes allocated = 0;  // bytes of the disk that it has
  unsigned mode = 0;    // the bits of its permissions
  unsigned user = 0;    // whose it is
  unsigned group = 0;
};

inline bool same_file(const FileStatus& a, const FileStatus& b) noexcept {
  return a.device == b.device && a.number == b.number;
}

struct DiskSpace {
  Bytes free = kNoLimit;       // bytes; kNoLimit where the file system does not tell
  Bytes available = kNoLimit;  // bytes of them that this process may have
};

enum class Opening {
  existing,  // to read and write
  fresh,     // the same, and the file is made; refused where one is there
  folder,    // to flush its entries
};

// Each returns 0, or what it says, or minus a number of errno(3). Abstract so that
// tests can make each call fail; any thread may call any of them.
class FileOperations {
 public:
  virtual ~FileOperations() = default;

  // A descriptor that no program started later inherits. A symbolic link at the end of
  // the path is refused. `mode`: the permissions of a fresh file, before the umask.
  virtual int open(const char* path, Opening how, unsigned mode) const noexcept = 0;
  virtual void close(int file) const noexcept = 0;
  virtual int look(int file, FileStatus& status) const noexcept = 0;
  // A symbolic link is `other`, and not followed.
  virtual int look_at(const char* path, FileStatus& status) const noexcept = 0;

  // One owner at a time, whoever it is; -EWOULDBLOCK where there is one. The lock is
  // the open file's: descriptors that a fork copied share it, others do not.
  virtual int lock(int file) const noexcept = 0;
  virtual void unlock(int file) const noexcept = 0;

  // Disk behind the first `size` bytes, gaps included; the length stays as it is.
  // -EOPNOTSUPP where the file system cannot; then `allocate_slowly` may, which makes
  // the length `size` at least and may leave a part of it behind when it fails.
  virtual int allocate(int file, Bytes size) const noexcept = 0;
  virtual int allocate_slowly(int file, Bytes size) const noexcept = 0;
  virtual int set_size(int file, Bytes size) const noexcept = 0;
  virtual int set_mode(int file, unsigned mode) const noexcept = 0;
  virtual int set_owner(int file, unsigned user, unsigned group) const noexcept = 0;
  virtual int space(int file, DiskSpace& space) const noexcept = 0;

  // Post: the pages of the first `size` bytes, shared with all who map the file.
  virtual int map(int file, Bytes size, void*& address) const noexcept = 0;
  // The same pages at the same place, but what is written there stays in this process.
  // When it fails they can no longer be written.
  virtual int map_privately(int file, void* address, Bytes size) const noexcept = 0;
  virtual void unmap(void* address, Bytes size) const noexcept = 0;

  // What was written to shared pages, or to the file, is on the disk.
  virtual int flush_pages(void* address, Bytes size) const noexcept = 0;
  virtual int flush(int file) const noexcept = 0;

  // Pre: shared, whole pages. This process has them no longer; a touch brings them
  // back.
  virtual int drop_pages(void* address, Bytes size) const noexcept = 0;
  // Bytes of whole pages that this process has resident; 0 where nobody tells.
  virtual Bytes resident(const void* address, Bytes size) const noexcept = 0;

  virtual int rename(const char* from, const char* to) const noexcept = 0;
  virtual int remove(const char* path) const noexcept = 0;
};

const FileOperations& host_files() noexcept;

}  // namespace memcfg
