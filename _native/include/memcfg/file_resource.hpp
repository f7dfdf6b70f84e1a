// Blocks in a file that is ours alone: found or made, locked, as long as was asked for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "memcfg/file_operations.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/ledger.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/system.hpp"
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
  std::atomic<bool> committed_{false};
  FileStatus status_;  // of the claimed file when it was locked
  DiskSpace space_;    // at that time
  FileStatus old_;     // of the file that is replaced
  Bytes size_ = 0;
  Bytes old_size_ = 0;
};

// The pages of a file, until the object goes: one reservation, which has memory from
// the beginning. Nothing is ever given back below. The memory is the file's and not
// counted as the host's, the metadata of a heap are those of another system.
class FilePages final : public BorrowedMetadata {
 public:
  // Throws file_error.
  FilePages(const FileOperations& files,
            const FileClaim& claim,
            const System& metadata);
  ~FilePages() override { files_.unmap(address_, size_); }

  void* address() const noexcept { return address_; }
  Bytes size() const noexcept { return size_; }  // bytes, whole pages

  Bytes page_size() const noexcept override { return host_system().page_size(); }

  void* reserve(Bytes size, Access) const noexcept override {
    if (reserved_ || size != size_) return nullptr;
    reserved_ = true;
    return address_;
  }
  void release(void*, Bytes) const noexcept override { reserved_ = false; }

 private:
  const FileOperations& files_;
  const Bytes size_;
  void* address_ = nullptr;
  mutable bool reserved_ = false;
};

// A heap in the pages of a claimed file: a block's bytes are the file's. No block
// reaches behind the file's last byte, so the bytes of a last line of less than
// kAlignment are only in a block of the whole file. Between that byte and the end of
// the last page there is memory, and what is written there is in no file.
//
// In the child of a fork the pages are the child's own to write, and never reach the
// file. Where the options share them, a request of a child throws std::runtime_error,
// since its metadata are a copy of its parent's. A child neither unlocks nor removes
// the file. When the process ends by exit(3), a file that is to be removed is.
//
// Invariant: heap's chunks == the ledger's blocks and the tail behind them;
// current <= reserved == file's bytes, rounded up to kAlignment.
class FileResource final : public LedgerResource {
 public:
  // Throws file_error, std::invalid_argument, std::bad_alloc; file and folder are then
  // as they were.
  explicit FileResource(FileOptions options,
                        const FileOperations& files = host_files(),
                        const System& metadata = host_system());
  ~FileResource() override;  // closes, and tells nobody what failed

  const std::string& name() const noexcept override { return name_; }
  SpaceKind kind() const noexcept override { return SpaceKind::file; }
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool resize(void* address, Bytes size, Bytes new_size) override;
  ResourceStats stats() const override;
  void check() const override;

  Bytes size() const noexcept { return size_; }  // bytes of the file

  // What was written so far is on the disk. Throws file_error, std::invalid_argument
  // once it is closed, and std::runtime_error in a child whose pages are its own.
  void flush();

  // The whole pages in [from, from + size) leave this process, the next touch brings
  // them back. Returns how many of their bytes it had. Throws std::invalid_argument
  // when the file has no such bytes, else as `flush` does.
  Bytes drop(Bytes from, Bytes size);

  // Pre: `address` is in the file. Its offset, in bytes from the beginning.
  Offset offset_of(const void* address) const noexcept;

  // Flushes the file, or removes it if that was asked for, then ends every access to
  // it; a child only ends its own. Throws still_held while blocks are out, and
  // file_error; it is not closed then. Afterwards a request is std::invalid_argument.
  void close();
  bool closed() const;

  // The same while blocks are out, whose memory ends. It is closed, whatever is thrown.
  void abandon();

  // Drops the pages of all files of the process that can be dropped.
  static void drop_all() noexcept;

 private:
  friend class FileRegistry;
  // While it lives, the registry knows the file.
  class Entry : private NoCopy {
   public:
    explicit Entry(FileResource& file);
    ~Entry();

   private:
    FileResource& file_;
  };
  // Bytes at the low and the high end that blocks have had, or that were there before.
  // What lies between is zero.
  struct Used {
    Offset low, high;
    void note(Offset first, Offset last) noexcept;
  };

  Bytes chunk_bytes(Bytes size) const noexcept;  // pre: size <= size()
  void* allocate_bytes(const Request& request, bool& zero);
  void* allocate_in_heap(const Request& request, bool& zero);
  void* find_chunk(Bytes bytes, Bytes alignment, Lifetime lifetime);
  OutOfMemoryInfo::Cause why_not(Bytes size) const;
  void release_chunk(void* address) noexcept;
  bool change(void* address, Bytes size, Bytes new_size);
  void require_open() const;

  static bool is_ours(const FileStatus& file) noexcept;
  bool owned() const noexcept;  // false: in a child of the process that opened it
  void require_file() const;
  void close_file(std::unique_ptr<Heap>& heap);
  void end() noexcept;
  void release_file() noexcept;
  // Pre of those that follow: the registry's lock is held, or nobody else is there.
  void after_fork() noexcept;  // in the child
  void at_exit() noexcept;
  void drop_pages() noexcept;

  const FileOperations& files_;
  const std::int64_t owner_;  // the process
  const std::string name_;
  std::optional<FileClaim> claim_;
  const Bytes size_;
  const Bytes usable_;  // bytes, whole lines; at least one, which then is not whole
  std::optional<FilePages> pages_;  // none once it is closed, like the claim
  void* const address_;
  std::atomic<bool> private_{false};  // what is written stays in this process
  // False: a process that shares its metadata may write to the same bytes.
  std::atomic<bool> exclusive_{true};
  std::mutex file_mutex_;  // of those who need the pages; new in the child of a fork
  Entry entry_;
  mutable std::mutex mutex_;    // guards all below
  std::unique_ptr<Heap> heap_;  // null: closed, or about to be
  Bytes tail_ = 0;              // bytes of the heap behind what is usable
  Used used_;
};

}  // namespace memcfg
