// Memory spaces: where a program's operands lie, as (space, offset).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "memcfg/arena.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Bytes [0, size()). Copies reach all of them; kernels those that have addresses.
class Space {
 public:
  Space() = default;
  virtual ~Space() = default;
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  virtual Bytes size() const = 0;
  virtual std::byte* base() const noexcept = 0;  // null: no addresses
  // Before a step; makes anew what a fork took away. Throws file_error.
  virtual void prepare() {}
  // Pre: [offset, offset + size) lies inside, and there are addresses unless these are
  // overridden. Throw file_error.
  virtual void read(Offset offset, void* to, Bytes size) const;
  virtual void write(Offset offset, const void* from, Bytes size);
};

// The memory of an arena, which it keeps from being freed.
class ArenaSpace final : public Space {
 public:
  explicit ArenaSpace(std::shared_ptr<Arena> arena) : pin_(std::move(arena)) {}
  Arena& arena() const noexcept { return pin_.arena(); }
  Bytes size() const override { return arena().size(); }
  std::byte* base() const noexcept override { return arena().base(); }

 private:
  Pin pin_;
};

// Memory of a resource, given back when nobody refers to it any more.
class Buffer {
 public:
  // Throws out_of_memory.
  Buffer(std::shared_ptr<Resource> resource, Bytes size, std::string_view tag);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const noexcept { return data_; }
  Bytes size() const noexcept { return size_; }

 private:
  std::shared_ptr<Resource> resource_;
  Bytes size_;
  std::byte* data_;
};

// A buffer that is taken and dropped over and over; between the two it has addresses.
class BufferSpace final : public Space {
 public:
  BufferSpace(std::shared_ptr<Resource> resource, Bytes size, std::string tag);
  Bytes size() const override { return size_; }
  std::byte* base() const noexcept override;
  // Throws out_of_memory; nothing has changed then.
  void take();
  void drop() noexcept { buffer_.reset(); }
  // Throws out_of_memory, as if the limit were reached; for tests.
  [[noreturn]] void refuse() const;
  const std::shared_ptr<Buffer>& buffer() const noexcept { return buffer_; }

 private:
  std::shared_ptr<Resource> resource_;
  const Bytes size_;
  const std::string tag_;
  std::shared_ptr<Buffer> buffer_;  // null: dropped
};

// Disk in a file that has no name: it goes with the object, or with the process. Its
// disk is taken when it is made. The child of a fork has a file of its own, whose
// bytes are undefined: the parent writes to the one that both would share.
class ScratchFile final : public Space {
 public:
  // Throws file_error.
  ScratchFile(std::string folder, Bytes size);
  ~ScratchFile() override;
  Bytes size() const override { return size_; }
  std::byte* base() const noexcept override { return nullptr; }
  void prepare() override;
  void read(Offset offset, void* to, Bytes size) const override;
  void write(Offset offset, const void* from, Bytes size) override;

 private:
  void open();

  const std::string folder_;
  const Bytes size_;
  int file_ = -1;
  std::uint64_t forks_;
};

// Copies bytes between spaces, or inside of one where they do not overlap. Pre: both
// ranges lie inside. Throws file_error.
void copy_between(
    const Space& from, Offset source, Space& to, Offset target, Bytes size);

}  // namespace memcfg
