// Files for tests: a folder that goes, and operations that fail at will.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "check.hpp"
#include "memcfg/error.hpp"
#include "memcfg/file_operations.hpp"
#include "memcfg/file_resource.hpp"

namespace files {

using memcfg::Bytes;
using memcfg::FileOptions;
using memcfg::FileResource;

// An empty folder, until the object goes.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "memcfg-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = std::filesystem::canonical(name).string();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  // Every file's name and bytes.
  std::map<std::string, std::string> content() const;

 private:
  std::string path_;
};

inline std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::map<std::string, std::string> Folder::content() const {
  std::map<std::string, std::string> rows;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    rows[entry.path().filename().string()] = read(entry.path().string());
  }
  return rows;
}

// Bytes of the disk that a file has.
inline Bytes disk_of(const std::string& path) {
  struct stat row = {};
  CHECK(stat(path.c_str(), &row) == 0);
  return static_cast<Bytes>(row.st_blocks) * 512;
}

inline FileOptions at(const std::string& path, Bytes size) {
  FileOptions options;
  options.path = options.resolved_path = path;
  if (size > 0) options.size = size;
  return options;
}

inline FileOptions replacing(const std::string& path, Bytes size) {
  FileOptions options = at(path, size);
  options.overwrite = true;
  return options;
}

inline FileOptions passing(const std::string& path, Bytes size) {
  FileOptions options = at(path, size);
  options.remove = true;
  return options;
}

inline FileOptions replacing_passing(const std::string& path, Bytes size) {
  FileOptions options = replacing(path, size);
  options.remove = true;
  return options;
}

// A file somewhere, with its metadata in a system; nobody needs its name.
inline std::shared_ptr<FileResource> nameless(Bytes size, const memcfg::System& books) {
  std::string path = std::filesystem::temp_directory_path() / "memcfg-XXXXXX";
  close(mkstemp(path.data()));
  return std::make_shared<FileResource>(
      replacing_passing(path, size), memcfg::host_files(), books);
}

// The number of a file_error, or 0 when there is none.
inline int error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const memcfg::file_error& error) {
    return error.number();
  }
  return 0;
}

// The host's files, until `calls_left` runs out: the next call that may fail does, and
// no other. Counts what is open.
class FaultyFiles final : public memcfg::FileOperations {
 public:
  static constexpr int kMany = 1 << 30;

  mutable std::atomic<int> calls_left{kMany};
  mutable std::atomic<int> descriptors{0};
  mutable std::atomic<int> mappings{0};
  mutable std::atomic<int> page_flushes{0};
  int error = EIO;                // what the call fails with
  bool allocates = true;          // false: the file system cannot
  bool foreign = false;           // files with bytes seem to be another's
  int owner_error = 0;            // of giving a file to its old owner
  Bytes disk = memcfg::kNoLimit;  // bytes, after which it is full
  mutable std::function<void()> before_locking;  // once
  mutable std::string order;                     // f a flush, r a rename, o an owner

  bool has_all_back() const { return descriptors == 0 && mappings == 0; }

  int open(const char* path,
           memcfg::Opening how,
           unsigned mode) const noexcept override {
    if (!allow()) return -error;
    const int file = host().open(path, how, mode);
    if (file >= 0) ++descriptors;
    return file;
  }
  void close(int file) const noexcept override {
    --descriptors;
    host().close(file);
  }
  int look(int file, memcfg::FileStatus& status) const noexcept override {
    const int result = allow() ? host().look(file, status) : -error;
    if (foreign && status.size > 0) ++status.user;
    return result;
  }
  int look_at(const char* path, memcfg::FileStatus& status) const noexcept override {
    return allow() ? host().look_at(path, status) : -error;
  }
  int lock(int file) const noexcept override {
    if (before_locking) std::exchange(before_locking, nullptr)();
    return allow() ? host().lock(file) : -error;
  }
  void unlock(int file) const noexcept override { host().unlock(file); }
  int allocate(int file, Bytes size) const noexcept override {
    if (!allow()) return -error;
    if (!allocates) return -EOPNOTSUPP;
    if (size <= disk) return host().allocate(file, size);
    host().allocate(file, disk);  // as file systems do
    return -ENOSPC;
  }
  int allocate_slowly(int file, Bytes size) const noexcept override {
    if (!allow()) return -error;
    if (size <= disk) return host().allocate_slowly(file, size);
    host().allocate_slowly(file, disk);
    return -ENOSPC;
  }
  int set_size(int file, Bytes size) const noexcept override {
    return allow() ? host().set_size(file, size) : -error;
  }
  int set_mode(int file, unsigned mode) const noexcept override {
    return allow() ? host().set_mode(file, mode) : -error;
  }
  int set_owner(int file, unsigned user, unsigned group) const noexcept override {
    if (!allow()) return -error;
    order += 'o';
    if (foreign) return -owner_error;
    return host().set_owner(file, user, group);
  }
  int space(int file, memcfg::DiskSpace& space) const noexcept override {
    return allow() ? host().space(file, space) : -error;
  }
  int map(int file, Bytes size, void*& address) const noexcept override {
    const int result = allow() ? host().map(file, size, address) : -error;
    if (result == 0) ++mappings;
    return result;
  }
  int map_privately(int file, void* address, Bytes size) const noexcept override {
    return host().map_privately(file, address, size);
  }
  void unmap(void* address, Bytes size) const noexcept override {
    --mappings;
    host().unmap(address, size);
  }
  int flush_pages(void* address, Bytes size) const noexcept override {
    if (!allow()) return -error;
    ++page_flushes;
    return host().flush_pages(address, size);
  }
  int flush(int file) const noexcept override {
    if (!allow()) return -error;
    order += 'f';
    return host().flush(file);
  }
  int drop_pages(void* address, Bytes size) const noexcept override {
    return allow() ? host().drop_pages(address, size) : -error;
  }
  Bytes resident(const void* address, Bytes size) const noexcept override {
    return host().resident(address, size);
  }
  int rename(const char* from, const char* to) const noexcept override {
    order += 'r';
    return allow() ? host().rename(from, to) : -error;
  }
  int remove(const char* path) const noexcept override {
    return allow() ? host().remove(path) : -error;
  }

 private:
  static const memcfg::FileOperations& host() { return memcfg::host_files(); }
  bool allow() const noexcept { return calls_left-- != 0; }
};

}  // namespace files
