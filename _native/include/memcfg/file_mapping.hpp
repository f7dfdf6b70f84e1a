// A file in memory: its bytes at one address, until it is closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "memcfg/file_claim.hpp"
#include "memcfg/file_operations.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// The pages of a file, until the object goes.
class FilePages : private NoCopy {
 public:
  FilePages(const FileOperations& files, const FileClaim& claim);  // throws file_error
  ~FilePages() { files_.unmap(address_, size_); }

  void* address() const noexcept { return address_; }
  Bytes size() const noexcept { return size_; }  // bytes, whole pages

 private:
  const FileOperations& files_;
  const Bytes size_;
  void* address_ = nullptr;
};

// A claimed file and its pages. Between the file's last byte and the end of the last
// page there is memory, and what is written there is in no file.
//
// In the child of a fork the pages are the child's own to write, and never reach the
// file, unless the options share them; a child neither unlocks nor removes the file.
// When the process ends by exit(3), a file that is to be removed is.
//
// Any thread may call anything. After `close` all but `size` and `owned` throw
// std::invalid_argument.
class FileMapping {
 public:
  // Throws as FileClaim does. Until `commit`, destroying it leaves no trace.
  FileMapping(const FileOperations& files, FileOptions options);
  ~FileMapping();  // closes, and tells nobody what failed

  void commit();  // throws file_error, as FileClaim's does

  void* address() const noexcept { return address_; }
  Bytes size() const noexcept { return size_; }          // bytes of the file
  Bytes old_size() const noexcept { return old_size_; }  // that were there before
  // False: in a child of the process that opened it.
  bool owned() const noexcept;
  // False: a process that shares its metadata may write to the same bytes.
  bool exclusive() const noexcept { return exclusive_; }

  // What was written so far is on the disk. Throws file_error, and std::runtime_error
  // in a child whose pages are its own.
  void flush();

  // The whole pages in [from, from + size) leave this process, the next touch brings
  // them back. Returns how many of their bytes it had. Throws std::invalid_argument
  // when the file has no such bytes, and std::runtime_error as `flush` does.
  Bytes drop(Bytes from, Bytes size);

  // Flushes the file, or removes it if that was asked for, then ends every access to
  // it. Throws file_error; it is not closed then. A child only ends its own access.
  void close();

  // Drops the pages of all files of the process that can be dropped.
  static void drop_all() noexcept;

 private:
  friend class FileRegistry;
  // While it lives, the registry knows the mapping.
  class Entry : private NoCopy {
   public:
    explicit Entry(FileMapping& mapping);
    ~Entry();

   private:
    FileMapping& mapping_;
  };

  static bool is_ours(const FileStatus& file) noexcept;
  void require_file() const;
  void part();
  void release() noexcept;
  // Pre of those that follow: the registry's lock is held, or nobody else is there.
  void after_fork() noexcept;  // in the child
  void at_exit() noexcept;
  void drop_pages() noexcept;

  const FileOperations& files_;
  const std::int64_t owner_;  // the process
  std::optional<FileClaim> claim_;
  std::optional<FilePages> pages_;  // these two are none once it is closed
  void* const address_;
  const Bytes size_;
  const Bytes old_size_;
  std::atomic<bool> private_{false};  // what is written stays in this process
  std::atomic<bool> exclusive_{true};
  std::atomic<bool> committed_{false};
  std::mutex mutex_;  // of those who need the pages; new in the child of a fork
  Entry entry_;
};

}  // namespace memcfg
