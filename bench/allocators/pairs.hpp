// Speed of allocate and deallocate on one thread.
#pragma once

#include "harness.hpp"

namespace bench {

// What reading the clock adds to each latency.
template <class Peer>
void clock_cost(const Options&, const Report& report) {
  pin(0);
  const double each = seconds_each(0.05, [](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) static_cast<void>(Clock::now());
  });
  report.add("steady_clock", "ns", each * 1e9);
}

template <class Peer>
void one_pair(Peer& peer, Bytes size) {
  void* const block = peer.allocate(size);
  use(block);
  peer.deallocate(block, size);
}

// TensorFlow's BM_Allocation: ten sizes in turn, freed at once; then each of many sizes
// by itself. Nothing is touched.
template <class Peer>
void pair(const Options& options, const Report& report) {
  const Bytes mixed[] = {
      256, 4_KiB, 16_KiB, 512_KiB, 512, 1_MiB, 10_MiB, 100_MiB, 1_GiB, 2_GiB};
  const double seconds = options.quick ? 0.02 : 0.2;
  pin(0);
  {
    Peer peer(Terms{});
    const double each = seconds_each(seconds, [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) one_pair(peer, mixed[i % 10]);
    });
    report.add("ten sizes, 256 B to 2 GiB", "ns", each * 1e9);
  }
  for (Bytes size = 64; size <= 64_MiB; size *= 4) {
    Peer peer(Terms{});
    const double each = seconds_each(seconds, [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) one_pair(peer, size);
    });
    report.add(text(size), "ns", each * 1e9);
  }
}

// TensorFlow's BM_AllocationDelayed: each block is freed `delay` allocations later.
template <class Peer>
void delayed(const Options& options, const Report& report) {
  const Bytes sizes[] = {256, 4_KiB, 16_KiB, 4_KiB, 512, 1_KiB, 1_KiB};
  pin(0);
  for (const std::size_t delay : {1, 10, 100, 1000}) {
    Peer peer(Terms{1_GiB});
    struct Slot {
      void* block = nullptr;
      Bytes size = 0;
    };
    std::vector<Slot> slots(delay);
    std::size_t place = 0;
    std::size_t turn = 0;
    const double seconds = options.quick ? 0.02 : 0.2;
    const double each = seconds_each(seconds, [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        Slot& slot = slots[place];
        if (slot.block != nullptr) peer.deallocate(slot.block, slot.size);
        slot.size = sizes[turn];
        slot.block = peer.allocate(slot.size);
        use(slot.block);
        place = place + 1 == delay ? 0 : place + 1;
        turn = turn + 1 == 7 ? 0 : turn + 1;
      }
    });
    for (const Slot& slot : slots) peer.deallocate(slot.block, slot.size);
    report.add("delay " + std::to_string(delay), "ns", each * 1e9);
  }
}

}  // namespace bench
