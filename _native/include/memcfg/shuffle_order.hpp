// The order in which a bounded buffer shuffles: that of TensorFlow's tf.data.
//
// Pure functions over numbers: what is shuffled has positions, and these are exchanged.
#pragma once

#include <cstdint>

#include "memcfg/philox.hpp"

namespace memcfg {

// The 32-bit words of Philox4x32-10 for a key and the upper half of the counter, whose
// lower half counts from 0.
class RandomWords {
 public:
  RandomWords(std::uint64_t key, std::uint64_t stream) : key_(key), stream_(stream) {}

  std::uint32_t next() {
    if (used_ == kWords) refill();
    const std::uint32_t word = words_.word[used_ % 4][used_ / 4];
    ++used_;
    return word;
  }

 private:
  static constexpr int kWords = 4 * philox::kLanes;

  void refill() {
    for (int i = 0; i < philox::kLanes; ++i, ++block_) {
      words_.word[0][i] = static_cast<std::uint32_t>(block_);
      words_.word[1][i] = static_cast<std::uint32_t>(block_ >> 32);
      words_.word[2][i] = static_cast<std::uint32_t>(stream_);
      words_.word[3][i] = static_cast<std::uint32_t>(stream_ >> 32);
    }
    philox::generate(words_, key_);
    used_ = 0;
  }

  std::uint64_t key_;
  std::uint64_t stream_;
  std::uint64_t block_ = 0;  // the first that is not in `words_`
  philox::Words words_;
  int used_ = kWords;
};

// A ring of slots. A number that comes in takes the slot behind the youngest; once all
// are taken, each that came in sends one of them out, chosen with equal chances by one
// random word. The oldest moves to the slot that became free, so that the free slot is
// next to the youngest.
//
// The slots are the caller's: 0 <= held <= size, and slots [0, min(size, came in)) are
// in use. Numbers come in first, then all are drained.
class ShuffleOrder {
 public:
  // Pre: size > 0.
  ShuffleOrder(std::int64_t size, std::uint64_t seed, std::uint64_t seed2)
      : size_(size), random_(seed, seed2) {}

  std::int64_t size() const { return size_; }
  std::int64_t held() const { return held_; }

  // How many slots there must be before `count` numbers may come in.
  std::int64_t slots_for(std::int64_t count) const {
    return count < size_ - held_ ? held_ + count : size_;
  }

  // Pre: room for `count` in `out`, which may be `in`. Returns how many went out.
  std::int64_t exchange(std::int64_t* slots,
                        const std::int64_t* in,
                        std::int64_t count,
                        std::int64_t* out) {
    std::int64_t gone = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      slots[wrapped(oldest_ + held_)] = in[i];
      if (++held_ == size_) out[gone++] = take(slots);
    }
    return gone;
  }

  // Sends out at most `count`. Returns how many went.
  std::int64_t drain(std::int64_t* slots, std::int64_t count, std::int64_t* out) {
    std::int64_t gone = 0;
    while (gone < count && held_ > 0) out[gone++] = take(slots);
    return gone;
  }

 private:
  // Pre: index < 2 * size.
  std::int64_t wrapped(std::int64_t index) const {
    return index < size_ ? index : index - size_;
  }

  std::int64_t take(std::int64_t* slots) {
    const std::int64_t index = wrapped(oldest_ + choose());
    const std::int64_t number = slots[index];
    slots[index] = slots[oldest_];
    oldest_ = wrapped(oldest_ + 1);
    --held_;
    return number;
  }

  // As TensorFlow: a remainder, whose chances differ by held / 2^32 at most.
  std::int64_t choose() {
    const std::uint32_t word = random_.next();
    if (held_ > std::int64_t{UINT32_MAX}) return word;
    return word % static_cast<std::uint32_t>(held_);
  }

  std::int64_t size_;
  std::int64_t held_ = 0;
  std::int64_t oldest_ = 0;  // a slot
  RandomWords random_;
};

}  // namespace memcfg
