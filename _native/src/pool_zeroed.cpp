#include "memcfg/pool.hpp"

// Blocks whose bytes are zero.

#include <cstddef>
#include <cstring>

namespace memcfg {
namespace {

constexpr Bytes kManyPages = Bytes{32} << 20;  // bytes; glibc maps such blocks anew

}  // namespace

// Pages that nobody has touched are zero; of those that the block shares with others,
// only its own bytes are written. The memory of many used pages goes back: the system
// gives them new ones when they are written, which costs no more than writing them
// here, and nothing where that never happens. Not without growth, where it is to stay.
void* Pool::allocate_zeroed(const Request& request) {
  Request any = request;
  any.zeroed = false;
  require_valid(request);
  const Grant grant = request.size <= SizeClass::kLargest
                          ? Grant{allocate(any), Heap::Fresh::none}
                          : allocate_in_huge_pages(any);
  if (!touchable()) return grant.address;
  auto* const bytes = static_cast<std::byte*>(grant.address);
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes);
  const std::uintptr_t end = begin + request.size;
  const std::uintptr_t first = round_up(begin, system_.page_size());
  const std::uintptr_t last = round_down(end, system_.page_size());
  bool fresh = grant.fresh == Heap::Fresh::all && first < last;
  if (!fresh && growth_ && request.size >= kManyPages) {
    fresh = system_.renew(bytes + (first - begin), last - first);
  }
  if (fresh) {
    std::memset(bytes, 0, first - begin);
    std::memset(bytes + (last - begin), 0, end - last);
  } else {
    std::memset(bytes, 0, request.size);
  }
  return grant.address;
}

// A block of many pages that begins with a huge one, if it can be had: at a border, the
// parts of one are taken in small pages, at hundreds of times the faults.
Pool::Grant Pool::allocate_in_huge_pages(Request request) {
  const Bytes alignment = request.alignment;
  request.alignment = std::max(alignment, system_.huge_page_size());
  if (request.size >= kManyPages && request.alignment > alignment) {
    try {
      return allocate_slowly(request, own_cache());
    } catch (const out_of_memory&) {  // then wherever it fits
    }
  }
  request.alignment = alignment;
  return allocate_slowly(request, own_cache());
}

}  // namespace memcfg
