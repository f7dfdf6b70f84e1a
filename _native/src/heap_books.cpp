#include "memcfg/heap.hpp"

// What a heap says of itself, and the proof of its books.

#include <algorithm>

namespace memcfg {

Bytes Heap::metadata() const noexcept {
  Bytes sum = chunks_.bytes() + tables_.bytes();
  for (const Segment& segment : segments_) {
    sum += segment.starts.bytes() + segment.pages.bytes() + segment.huge.bytes();
  }
  return sum;
}

// Of a whole-block system only a segment that is one hole can go.
Page Heap::idle_pages(const Chunk& hole) const noexcept {
  if (system_.whole_blocks() && hole.size != segment_of(hole).size) return 0;
  const Span span = inside(hole);
  return segment_of(hole).pages.count(span.first, span.last);
}

Bytes Heap::idle() const noexcept {
  Page pages = 0;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    pages += idle_pages(chunks_[id]);
  }
  return pages << page_bits_;
}

// All of a hole but for the pages inside it that are not committed.
Bytes Heap::committed_in(const Chunk& hole) const noexcept {
  const Span span = inside(hole);
  const Page missing =
      span.last - span.first - segment_of(hole).pages.count(span.first, span.last);
  return hole.size - (missing << page_bits_);
}

Bytes Heap::largest_spare() const noexcept {
  const ChunkId warm = warm_.largest();
  Bytes most = warm == 0 ? 0 : chunks_[warm].size;
  for (ChunkId id = oldest_; id != 0; id = chunks_[id].younger) {
    most = std::max(most, committed_in(chunks_[id]));
  }
  if (most >= 2 * page_) return most;
  // The holes that are not listed have less: the ends of two pages at most.
  for (const Segment& segment : segments_) {
    ChunkId id = segment.size == 0 ? 0 : segment.first;
    for (; id != 0; id = chunks_[id].above) {
      const Chunk& chunk = chunks_[id];
      if (chunk.state == Chunk::hole) most = std::max(most, committed_in(chunk));
    }
  }
  return most;
}

// Idle pages pay for new ones, and pages that a hole shares with its neighbours are
// paid for: less than one page in all. Idle blocks pay for a new block only if the
// system below joins them, which nobody promises.
Bytes Heap::largest_request(Bytes most, Bytes below) const noexcept {
  const Bytes ceiling = std::min(ceiling_, add_or_most(committed_, below));
  if (ceiling == kNoLimit) return most;
  const Bytes paid = system_.whole_blocks() ? 0 : idle();
  const Bytes room = round_down(ceiling - (committed_ - paid), page_);
  Bytes size = round_down(std::min(most, add_or_most(room, page_)), kAlignment);
  for (; size > 0; size -= kAlignment) {
    const ChunkId hole = best_fit(size);
    const Bytes fits = hole == 0 ? room : room_in(chunks_[hole], room);
    if (size <= fits) return size;
    if (best_fit(fits) == hole) return fits;  // as all sizes between the two
  }
  return 0;
}

// The most bytes at the low end of a hole that commit no more than `room` pages' bytes.
Bytes Heap::room_in(const Chunk& hole, Bytes room) const noexcept {
  const Span span = inside(hole);
  const Bytes paged = (span.last - span.first) << page_bits_;
  if (paged <= room) return hole.size;
  const Offset offset = hole.address - segment_of(hole).base;
  return (span.first << page_bits_) - offset + room;
}

std::vector<Stretch> Heap::layout(const std::vector<std::string>& tags) const {
  std::vector<Stretch> rows;
  for (const ChunkId first : first_chunks()) {
    for (ChunkId id = first; id != 0; id = chunks_[id].above) {
      rows.push_back(stretch(chunks_[id], tags));
    }
  }
  return rows;
}

Stretch Heap::stretch(const Chunk& chunk, const std::vector<std::string>& tags) const {
  const std::uintptr_t address = chunk.address;
  if (chunk.state == Chunk::hole) {
    return {address, chunk.size, committed_in(chunk), Stretch::hole, 0, {}};
  }
  const Use use(chunk.use);
  if (use.word() == 0) {
    return {address, chunk.size, chunk.size, Stretch::kept, 0, {}};
  }
  const std::string tag = use.tag() < tags.size() ? tags[use.tag()] : std::string();
  return {address, chunk.size, chunk.size, Stretch::block, use.requested(), tag};
}

std::vector<Stretch> Heap::pieces(const std::vector<std::string>& tags) const {
  std::vector<Stretch> rows;
  for (const ChunkId first : first_chunks()) {
    for (ChunkId id = first; id != 0; id = chunks_[id].above) {
      const Stretch whole = stretch(chunks_[id], tags);
      if (whole.committed == 0 || whole.committed == whole.size) {
        rows.push_back(whole);
      } else {
        split(whole, chunks_[id], rows);
      }
    }
  }
  return rows;
}

// The parts of a hole that lie in pages of its neighbours have memory, as these have.
void Heap::split(const Stretch& hole,
                 const Chunk& chunk,
                 std::vector<Stretch>& rows) const {
  const Segment& segment = segment_of(chunk);
  const Span span = inside(chunk);
  std::uintptr_t start = hole.address;
  const auto add = [&](std::uintptr_t end, bool committed) {
    const Bytes size = end - start;
    if (size > 0) {
      rows.push_back({start, size, committed ? size : 0, Stretch::hole, 0, {}});
    }
    start = end;
  };
  for (Page page = span.first; page < span.last;) {
    const Page bare = segment.pages.find(page, span.last, false);
    page = segment.pages.find(bare, span.last, true);
    add(segment.base + (bare << page_bits_), true);
    add(segment.base + (page << page_bits_), false);
  }
  add(hole.address + hole.size, true);
}

std::vector<ChunkId> Heap::first_chunks() const {
  std::vector<ChunkId> ids;
  for (const Segment& segment : segments_) {
    if (segment.size != 0) ids.push_back(segment.first);
  }
  std::sort(ids.begin(), ids.end(), [this](ChunkId a, ChunkId b) {
    return chunks_[a].address < chunks_[b].address;
  });
  return ids;
}

void Heap::check() const {
  Totals sum;
  for (const ChunkId id : first_chunks()) check_segment(id, sum);
  require(sum.taken == taken_, "the taken chunks do not add up");
  require(sum.taken + sum.holes == addresses_, "the chunks do not fill the addresses");
  require(sum.pages << page_bits_ == committed_, "the committed pages do not add up");
  require(committed_ <= ceiling_, "more is committed than the ceiling");
  require(warm_.check() + cold_.check() == sum.hole_count,
          "the trees do not have all the holes");
}

void Heap::check_segment(ChunkId first, Totals& sum) const {
  const Segment& segment = segment_of(chunks_[first]);
  segment.huge.check();
  sum.pages += segment.pages.count(0, segment.size >> page_bits_);
  std::uintptr_t place = segment.base;
  ChunkId below = 0;
  for (ChunkId id = first; id != 0; below = id, id = chunks_[id].above) {
    const Chunk& chunk = chunks_[id];
    require(chunk.address == place && chunk.below == below, "a gap between chunks");
    require(chunk.size > 0 && chunk.size % kAlignment == 0, "a chunk's odd size");
    place += chunk.size;
    check_chunk(id);
    if (chunk.state == Chunk::taken) {
      sum.taken += chunk.size;
    } else {
      sum.holes += chunk.size;
      ++sum.hole_count;
    }
  }
  require(place == segment.base + segment.size, "the chunks do not fill a segment");
}

void Heap::check_chunk(ChunkId id) const {
  const Chunk& chunk = chunks_[id];
  const Segment& segment = segment_of(chunk);
  const bool found = find(reinterpret_cast<void*>(chunk.address.load())) == id;
  require(found == (chunk.state == Chunk::taken), "a start is missing, or left over");
  const Span out = touched(chunk);
  const Span in = inside(chunk);
  if (chunk.state == Chunk::taken || chunk.pages == Chunk::all) {
    require(segment.pages.count(out.first, out.last) == out.last - out.first,
            "a page of a block is not committed");
  }
  if (chunk.state == Chunk::taken) return;
  require(chunk.state == Chunk::hole, "a spare chunk among the others");
  require(chunk.above == 0 || chunks_[chunk.above].state == Chunk::taken,
          "two holes touch");
  require(chunk.pages != Chunk::none || segment.pages.count(in.first, in.last) == 0,
          "a hole has more pages than it says");
}

}  // namespace memcfg
