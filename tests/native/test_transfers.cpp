#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "files.hpp"
#include "memcfg/transfer.hpp"

using memcfg::Bytes;
using memcfg::Lane;
using memcfg::Offset;
using memcfg::ScratchFile;
using memcfg::Space;
using memcfg::Transfer;

namespace {

constexpr Bytes kSize = 4096;  // bytes of a space

// Copies only once it is let go, or fails.
class Held final : public Space {
 public:
  Bytes size() const override { return kSize; }
  std::byte* base() const noexcept override { return nullptr; }
  void read(Offset offset, void* to, Bytes size) const override {
    wait();
    std::memcpy(to, bytes_.data() + offset, size);
  }
  void write(Offset offset, const void* from, Bytes size) override {
    wait();
    std::memcpy(bytes_.data() + offset, from, size);
  }

  std::atomic<bool> go{false}, fails{false};

 private:
  void wait() const {
    while (!go) std::this_thread::yield();
    if (fails) throw std::runtime_error("the link is down");
  }
  std::array<std::byte, kSize> bytes_{};
};

}  // namespace

TEST(bytes_come_back_from_a_file) {
  const files::Folder folder;
  const auto file = std::make_shared<ScratchFile>(folder.path(), kSize);
  const auto in = std::make_shared<Lane>(), out = std::make_shared<Lane>();
  std::vector<char> from(1000), to(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i);
  const auto write = Transfer::write(file, out, 100, from.data(), from.size());
  write->wait();
  CHECK(write->done());
  const auto read = Transfer::read(file, in, 100, to.data(), to.size());
  read->wait();
  read->wait();
  CHECK(from == to);
}

TEST(nobody_waits_before_he_must) {
  const auto space = std::make_shared<Held>();
  const auto lane = std::make_shared<Lane>();
  char from[] = "abc", to[4] = {};
  auto write = Transfer::write(space, lane, 0, from, 4);
  auto read = Transfer::read(space, lane, 0, to, 4);
  CHECK(!write->done() && !read->done());
  space->go = true;
  write.reset();  // waits
  read.reset();
  CHECK(std::strcmp(to, from) == 0);
}

TEST(a_failure_is_told_to_everybody_who_waits) {
  const auto space = std::make_shared<Held>();
  const auto lane = std::make_shared<Lane>();
  char byte = 0;
  space->fails = space->go = true;
  const auto read = Transfer::read(space, lane, 0, &byte, 1);
  for (int i = 0; i < 2; ++i) CHECK_THROWS(std::runtime_error, read->wait());
  CHECK(read->done());
  space->fails = false;
  Transfer::read(space, lane, 0, &byte, 1)->wait();  // the lane goes on
}

TEST(what_does_not_lie_inside_is_refused) {
  const auto space = std::make_shared<Held>();
  const auto lane = std::make_shared<Lane>();
  char byte = 0;
  const auto read = [&](Offset offset, Bytes size) {
    Transfer::read(space, lane, offset, &byte, size);
  };
  CHECK_THROWS(std::invalid_argument, read(kSize, 1));
  CHECK_THROWS(std::invalid_argument, read(kSize + 1, 0));
  CHECK_THROWS(std::invalid_argument, read(1, memcfg::kNoLimit));
}
