#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/page_map.hpp"
#include "systems.hpp"

using memcfg::Bits;
using memcfg::Page;
using memcfg::PageMap;

namespace {

class Model {
 public:
  Model(const memcfg::System& system, Page pages) : map_(system, pages), bits_(pages) {}

  void assign(Page first, Page last, bool value) {
    value ? map_.set(first, last) : map_.clear(first, last);
    std::fill(at(first), at(last), value);
  }

  void compare(Page first, Page last) const {
    CHECK(map_.count(first, last) ==
          static_cast<Page>(std::count(at(first), at(last), true)));
    for (const bool value : {false, true}) {
      const auto found = std::find(at(first), at(last), value);
      CHECK(map_.find(first, last, value) == static_cast<Page>(found - bits_.begin()));
    }
  }

  Page pages() const { return bits_.size(); }

 private:
  std::vector<bool>::iterator at(Page page) {
    return bits_.begin() + static_cast<std::ptrdiff_t>(page);
  }
  std::vector<bool>::const_iterator at(Page page) const {
    return bits_.begin() + static_cast<std::ptrdiff_t>(page);
  }

  PageMap map_;
  std::vector<bool> bits_;
};

// A stretch of pages: of any length, many of them with an end at the border of a word.
std::pair<Page, Page> stretch(std::mt19937& random, Page pages) {
  const auto place = [&] {
    const Page page = random() % (pages + 1);
    return random() % 3 == 0 ? page / Bits::kWord * Bits::kWord : page;
  };
  const Page first = place();
  if (random() % 2 == 0) return {first, std::min(pages, first + random() % 70)};
  const Page last = place();
  return {std::min(first, last), std::max(first, last)};
}

}  // namespace

TEST(masks) {
  CHECK(Bits::mask(0, 64) == ~std::uint64_t{0});
  CHECK(Bits::mask(64, 128) == ~std::uint64_t{0});
  CHECK(Bits::mask(0, 1) == 1 && Bits::mask(63, 64) == std::uint64_t{1} << 63);
  CHECK(Bits::mask(67, 70) == 0x38);
}

TEST(a_fresh_map_has_nothing) {
  const Faulty system;
  {
    const Model model(system, 10000);
    model.compare(0, 10000);
    model.compare(64, 128);
    model.compare(5, 5);
  }
  CHECK(system.has_all_back());
}

// Every pair of ends in a few words.
TEST(short_maps_agree_with_a_vector) {
  const Faulty system;
  for (const Page pages : {Page{1}, Page{64}, Page{65}, Page{190}, Page{192}}) {
    std::mt19937 random(1);
    Model model(system, pages);
    for (int step = 0; step < 6; ++step) {
      for (Page first = 0; first <= pages; ++first) {
        for (Page last = first; last <= pages; ++last) model.compare(first, last);
      }
      const auto [first, last] = stretch(random, pages);
      model.assign(first, last, step % 2 == 0);
    }
  }
}

// Long runs, so that words, and words of words, are full and empty.
TEST(long_maps_agree_with_a_vector) {
  const Faulty system;
  for (const Page pages : {Page{4095}, Page{8192}, Page{30001}}) {
    std::mt19937 random(2);
    Model model(system, pages);
    for (int step = 0; step < 1500; ++step) {
      const auto [first, last] = stretch(random, pages);
      model.assign(first, last, random() % 2 == 0);
      const auto [low, high] = stretch(random, pages);
      model.compare(low, high);
      model.compare(0, pages);
    }
  }
}
