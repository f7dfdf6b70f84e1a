// Memory spaces: where a program's operands lie, as (space, offset).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "memcfg/arena.hpp"
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
  // Pre: [offset, offset + size) lies inside. Throw file_error.
  virtual void read(Offset offset, void* to, Bytes size) const = 0;
  virtual void write(Offset offset, const void* from, Bytes size) = 0;
};

// The memory of an arena, which it keeps from being freed.
class ArenaSpace final : public Space {
 public:
  explicit ArenaSpace(std::shared_ptr<Arena> arena) : pin_(std::move(arena)) {}
  Arena& arena() const noexcept { return pin_.arena(); }
  Bytes size() const override { return arena().size(); }
  std::byte* base() const noexcept override { return arena().base(); }
  void read(Offset offset, void* to, Bytes size) const override;
  void write(Offset offset, const void* from, Bytes size) override;

 private:
  Pin pin_;
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
