#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "memcfg/error.hpp"
#include "memcfg/free_chunks.hpp"
#include "systems.hpp"

using memcfg::Bytes;
using memcfg::Chunk;
using memcfg::ChunkId;
using memcfg::FreeChunks;
using memcfg::kAlignment;
using memcfg::kNoLimit;
using memcfg::Store;

namespace {

// Holes, and beside them the same in a map: of each size those that are in, the last
// one last.
class Model {
 public:
  ChunkId insert(Bytes size) {
    chunks_.secure(1);
    const ChunkId id = chunks_.take();
    chunks_[id].size = size;
    chunks_[id].state = Chunk::free;
    free_chunks.insert(id);
    rows[size].push_back(id);
    ids.push_back(id);
    return id;
  }

  void remove(std::size_t index) {
    const ChunkId id = ids[index];
    const auto row = rows.find(chunks_[id].size);
    free_chunks.remove(id);
    row->second.erase(std::find(row->second.begin(), row->second.end(), id));
    if (row->second.empty()) rows.erase(row);
    chunks_.release(id);
    ids[index] = ids.back();
    ids.pop_back();
  }

  void compare(Bytes size) const {
    const auto row = rows.lower_bound(size);
    CHECK(free_chunks.best_fit(size) == (row == rows.end() ? 0 : row->second.back()));
    const ChunkId largest = free_chunks.largest();
    CHECK(rows.empty() ? largest == 0 : chunks_[largest].size == rows.rbegin()->first);
  }

  Chunk& chunk(ChunkId id) const { return chunks_[id]; }

 private:
  Faulty system_;
  Store<Chunk> chunks_{system_};

 public:
  FreeChunks free_chunks{chunks_};
  std::map<Bytes, std::vector<ChunkId>> rows;
  std::vector<ChunkId> ids;
};

// Sizes with many doubles, near the borders of bins, and large.
Bytes random_size(std::mt19937_64& random) {
  const int bits = static_cast<int>(random() % 40);
  const Bytes lines = (Bytes{1} << bits) + random() % 3;
  return std::max<Bytes>(1, lines - random() % 2) * kAlignment;
}

}  // namespace

TEST(no_free_chunk_fits_nothing) {
  const Model model;
  for (const Bytes size : {Bytes{64}, Bytes{1} << 40, kNoLimit}) model.compare(size);
  CHECK(model.free_chunks.check() == 0);
}

TEST(the_smallest_that_is_large_enough) {
  Model model;
  for (const Bytes lines : {Bytes{3}, Bytes{1}, Bytes{200}, Bytes{7}, Bytes{8}}) {
    model.insert(lines * kAlignment);
  }
  for (Bytes lines = 1; lines < 300; ++lines) model.compare(lines * kAlignment);
  model.compare(kNoLimit);
}

// Every size up to 40 KiB in a random order: each border of a bin, each shape of tree.
TEST(each_size_is_found) {
  std::mt19937_64 random(1);
  std::vector<Bytes> sizes;
  for (Bytes lines = 1; lines <= 640; ++lines) sizes.push_back(lines * kAlignment);
  for (int round = 0; round < 3; ++round) {
    Model model;
    std::shuffle(sizes.begin(), sizes.end(), random);
    for (const Bytes size : sizes) model.insert(size);
    CHECK(model.free_chunks.check() == sizes.size());
    for (const Bytes size : sizes) {
      CHECK(model.chunk(model.free_chunks.best_fit(size)).size == size);
    }
    while (!model.ids.empty()) {
      model.remove(random() % model.ids.size());
      model.compare(sizes[random() % sizes.size()]);
    }
    CHECK(model.free_chunks.check() == 0);
  }
}

TEST(of_one_size_the_last_comes_first) {
  std::mt19937_64 random(2);
  Model model;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2 == 0 && !model.ids.empty()) {
      model.remove(random() % model.ids.size());
    } else {
      model.insert((1 + random() % 3) * kAlignment);
    }
    for (Bytes lines = 1; lines <= 4; ++lines) model.compare(lines * kAlignment);
  }
}

TEST(random_free_chunks_agree_with_a_map) {
  for (const unsigned seed : {3U, 4U, 5U}) {
    std::mt19937_64 random(seed);
    Model model;
    for (int step = 0; step < 20000; ++step) {
      const bool growing = step / 4000 % 2 == 0;
      if (model.ids.empty() || random() % 3 < (growing ? 2U : 1U)) {
        model.insert(random_size(random));
      } else {
        model.remove(random() % model.ids.size());
      }
      model.compare(random_size(random));
      if (step % 500 == 0) CHECK(model.free_chunks.check() == model.ids.size());
    }
  }
}

// Depth: a search stays short however many sizes there are, in whatever order.
TEST(many_free_chunks) {
  Model model;
  for (Bytes lines = 100000; lines > 0; --lines) model.insert(lines * kAlignment);
  CHECK(model.free_chunks.check() == 100000);  // recursive: it would overflow on a list
  for (Bytes lines = 1; lines <= 100000; lines += 97) model.compare(lines * kAlignment);
}

// What was right becomes wrong, in each way that a check looks for.
TEST(check_sees_what_is_broken) {
  const std::vector<std::function<void(Chunk&)>> damages = {
      [](Chunk& chunk) { chunk.size += kAlignment; },
      [](Chunk& chunk) { chunk.state = Chunk::allocated; },
      [](Chunk& chunk) { chunk.in_tree = !chunk.in_tree; },
      [](Chunk& chunk) { std::swap(chunk.left, chunk.right); },
  };
  for (const auto& damage : damages) {
    int seen = 0;
    for (std::size_t index = 0; index < 10; ++index) {
      Model model;
      for (Bytes lines = 100; lines < 110; ++lines) model.insert(lines * kAlignment);
      CHECK(model.free_chunks.check() == 10);
      damage(model.chunk(model.ids[index]));
      try {
        model.free_chunks.check();
      } catch (const memcfg::invariant_broken&) {
        ++seen;
      }
    }
    CHECK(seen > 0);
  }
}
