#include "kernels/primitive.hpp"

#include <cstring>
#include <numeric>
#include <stdexcept>

#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"

namespace memcfg::onednn {

Owned<MemoryDesc> describe(const OneDnn& library,
                           const Shape& dims,
                           const Shape& strides,
                           int type) {
  MemoryDesc* desc = nullptr;
  const Status status = library.api().memory_desc_create_with_strides(
      &desc, static_cast<int>(dims.size()), dims.data(), type, strides.data());
  library.check(status, "describing an array");
  return {desc, library.api().memory_desc_destroy};
}

Owned<MemoryDesc> describe_tagged(const OneDnn& library,
                                  const Shape& dims,
                                  int tag,
                                  int type) {
  MemoryDesc* desc = nullptr;
  const Status status = library.api().memory_desc_create_with_tag(
      &desc, static_cast<int>(dims.size()), dims.data(), type, tag);
  library.check(status, "describing an array");
  return {desc, library.api().memory_desc_destroy};
}

Owned<MemoryDesc> describe_any(const OneDnn& library, const Shape& dims, int type) {
  return describe_tagged(library, dims, kTagAny, type);
}

Owned<Attributes> user_scratchpad(const OneDnn& library) {
  const Api& api = library.api();
  Attributes* attributes = nullptr;
  library.check(api.primitive_attr_create(&attributes), "making attributes");
  Owned<Attributes> owned(attributes, api.primitive_attr_destroy);
  library.check(api.primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad),
                "setting the scratchpad mode");
  return owned;
}

Owned<Attributes> with_post_ops(const OneDnn& library,
                                Post post,
                                const MemoryDesc* vector) {
  const Api& api = library.api();
  PostOps* made = nullptr;
  library.check(api.post_ops_create(&made), "making post-ops");
  const Owned<PostOps> owned(made, api.post_ops_destroy);
  if (post.scaled) {
    for (const int function : {algorithm::binary_mul, algorithm::binary_add}) {
      library.check(api.post_ops_append_binary(made, function, vector),
                    "adding a vector");
    }
  }
  if (post.sum) {
    library.check(api.post_ops_append_sum(made, 1.0F, 0, data_type::undef),
                  "adding a sum");
  }
  if (post.relu) library.check(api.post_ops_append_prelu(made, 0), "adding a ReLU");
  auto attributes = user_scratchpad(library);
  library.check(api.primitive_attr_set_post_ops(attributes.get(), made),
                "setting post-ops");
  return attributes;
}

void* no_slope() {
  static float zero = 0;
  return &zero;
}

namespace {

template <class Function>
MEMCFG_VECTORIZED void add_part(const float* made,
                                const float* other,
                                float* y,
                                Count count) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) y[i] = Function::of(made[i] + other[i]);
}

}  // namespace

void put_in_place(const void* from, void* to, Count elements) {
  if (from == to) return;
  const auto* const read = static_cast<const float*>(from);
  auto* const written = static_cast<float*>(to);
  parallel_chunks(elements, kChunk, [=](Count begin, Count length) {
    std::memcpy(written + begin, read + begin, float_bytes(length));
  });
}

void add_arrays(
    const float* made, const float* other, float* y, Count count, bool relu) {
  parallel_chunks(count, kChunk, [=](Count begin, Count length) {
    const auto add = relu ? add_part<Relu> : add_part<Identity>;
    add(made + begin, other + begin, y + begin, length);
  });
}

Call::Call(const OneDnn& library,
           const PrimitiveDesc* primitive,
           const std::vector<Operand>& operands)
    : library_(library),
      primitive_(nullptr, library.api().primitive_destroy),
      scratch_bytes_(0) {
  const Api& api = library_.api();
  Primitive* made = nullptr;
  library_.check(api.primitive_create(&made, primitive), "making a primitive");
  primitive_.reset(made);
  for (const Operand& operand : operands) add(operand);
  scratch_bytes_ = scratchpad_bytes(library_, primitive);
  add({arg::scratchpad, layout(library_, primitive, query::scratchpad)});
}

void Call::add(const Operand& operand) {
  const Api& api = library_.api();
  MemoryDesc* desc = nullptr;
  library_.check(api.memory_desc_clone(&desc, operand.layout), "describing an array");
  layouts_.push_back({operand.arg, {desc, api.memory_desc_destroy}});
}

Arguments Call::make_arguments() const {
  const Api& api = library_.api();
  Arguments made;
  for (const Layout& layout : layouts_) {
    Memory* memory = nullptr;
    library_.check(
        api.memory_create(&memory, layout.desc.get(), library_.engine(), nullptr),
        "making an operand");
    made.memories.emplace_back(memory, api.memory_destroy);
    made.list.push_back({layout.arg, memory});
  }
  return made;
}

void Call::set(Memory* memory, void* address) const {
  library_.check(library_.api().memory_set_data_handle(memory, address),
                 "setting an address");
}

void Call::run(void* const* addresses, void* scratch, Arguments& arguments) const {
  const std::size_t count = layouts_.size() - 1;
  for (std::size_t i = 0; i < count; ++i) {
    set(arguments.memories[i].get(), addresses[i]);
  }
  set(arguments.memories[count].get(), scratch);
  library_.check(
      library_.api().primitive_execute(primitive_.get(),
                                       library_.stream(),
                                       static_cast<int>(arguments.list.size()),
                                       arguments.list.data()),
      "running a primitive");
}

Owned<PrimitiveDesc> describe_reorder(const OneDnn& library,
                                      const MemoryDesc* from,
                                      const MemoryDesc* to,
                                      int scaled) {
  const Api& api = library.api();
  const auto attributes = user_scratchpad(library);
  if (scaled != 0) {
    library.check(
        api.primitive_attr_set_scales_mask(attributes.get(), arg::source, scaled),
        "scaling a reorder");
  }
  PrimitiveDesc* made = nullptr;
  const Status status = api.reorder_primitive_desc_create(
      &made, from, library.engine(), to, library.engine(), attributes.get());
  library.check(status, "making a reorder");
  return {made, api.primitive_desc_destroy};
}

Call reorder(const OneDnn& library, const MemoryDesc* from, const MemoryDesc* to) {
  const auto made = describe_reorder(library, from, to);
  return Call(library, made.get(), {{arg::source, from}, {arg::destination, to}});
}

namespace {

// Shorter lines take longer to move one by one than an array takes to copy.
constexpr Bytes kLineLeast = 16;

// A loop over a packed array: so many steps, of so many elements in each of the two.
struct Loop {
  Dim extent, packed, plain;
  int axis;
};

int number(const OneDnn& library, const MemoryDesc* array, int what) {
  int found = 0;
  library.check(library.api().memory_desc_query(array, what, &found),
                "asking for a layout");
  return found;
}
const Dim* numbers(const OneDnn& library, const MemoryDesc* array, int what) {
  const Dim* found = nullptr;
  library.check(library.api().memory_desc_query(array, what, &found),
                "asking for a layout");
  return found;
}

// The loops of a layout of blocks, the innermost first.
std::vector<Loop> loops_of(const OneDnn& library,
                           const MemoryDesc* plain,
                           const MemoryDesc* packed) {
  const int dimensions = number(library, packed, query::dimensions);
  const Dim* const dims = numbers(library, packed, query::padded_dims);
  const Dim* const steps = numbers(library, plain, query::strides);
  const Dim* const sizes = numbers(library, packed, query::block_sizes);
  const Dim* const of = numbers(library, packed, query::block_dims);
  std::vector<Loop> found;
  Shape block(static_cast<std::size_t>(dimensions), 1);
  Dim inner = 1;
  for (int i = number(library, packed, query::blocks) - 1; i >= 0; --i) {
    Dim& of_dim = block[static_cast<std::size_t>(of[i])];
    found.push_back({sizes[i], inner, steps[of[i]] * of_dim, static_cast<int>(of[i])});
    of_dim *= sizes[i];
    inner *= sizes[i];
  }
  const Dim* const outer = numbers(library, packed, query::strides);
  for (int i = 0; i < dimensions; ++i) {
    const Dim of_dim = block[static_cast<std::size_t>(i)];
    found.push_back({dims[i] / of_dim, outer[i], steps[i] * of_dim, i});
  }
  const auto once = [](const Loop& each) { return each.extent == 1; };
  found.erase(std::remove_if(found.begin(), found.end(), once), found.end());
  std::sort(found.begin(), found.end(), [](const Loop& a, const Loop& b) {
    return a.packed < b.packed;
  });
  return found;
}

}  // namespace

std::optional<LineOrder> LineOrder::of(const OneDnn& library,
                                       const MemoryDesc* plain,
                                       const MemoryDesc* packed) {
  const Dim* const dims = numbers(library, packed, query::dims);
  const Dim* const with_padding = numbers(library, packed, query::padded_dims);
  std::vector<int> padded;
  for (int i = 0; i < number(library, packed, query::dimensions); ++i) {
    if (dims[i] != with_padding[i]) padded.push_back(i);
  }
  LineOrder found;
  if (padded.size() > found.limits_.size()) return {};
  const auto is_padded = [&padded](const Loop& each) {
    return std::find(padded.begin(), padded.end(), each.axis) != padded.end();
  };
  std::vector<Loop> merged;
  Dim elements = 1;
  for (const Loop& each : loops_of(library, plain, packed)) {
    if (each.packed != elements) return {};
    elements *= each.extent;
    Loop* const last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->plain * last->extent == each.plain &&
        !is_padded(*last) && !is_padded(each)) {
      last->extent *= each.extent;
    } else {
      merged.push_back(each);
    }
  }
  const auto& size_of = library.api().memory_desc_get_size;
  if (merged.empty() || merged.front().plain != 1 ||
      float_bytes(elements) != size_of(packed)) {
    return {};
  }
  Dim line = merged.front().extent;
  if (is_padded(merged.front())) {  // the end of the axis is the end of a line
    const int axis = merged.front().axis;
    line = std::gcd(line, dims[axis]);
    const Loop lines{merged.front().extent / line, line, line, axis};
    merged.front().extent = line;
    if (lines.extent > 1) merged.insert(merged.begin() + 1, lines);
  }
  found.line_ = float_bytes(line);
  if (found.line_ < kLineLeast || elements / line > INT32_MAX) return {};
  found.packed_ = static_cast<std::uint32_t>(elements / line);
  found.plain_ = static_cast<std::uint32_t>(size_of(plain) / found.line_);
  const Dim* const steps = numbers(library, plain, query::strides);
  // What one step along an axis is, in elements of the plain array: a line at least.
  const auto step = [&](int axis) { return std::max(steps[axis], line); };
  for (std::size_t i = 0; i < padded.size(); ++i) {
    const int axis = padded[i];
    found.limits_[i] =
        static_cast<std::uint32_t>(dims[axis] * steps[axis] / step(axis));
  }
  for (auto each = merged.begin() + 1; each != merged.end(); ++each) {
    if (each->plain % line != 0) return {};
    const auto lines = [line](Dim size) {
      return static_cast<std::uint32_t>(size / line);
    };
    found.by_packed_.push_back({static_cast<std::uint32_t>(each->extent),
                                lines(each->packed),
                                lines(each->plain),
                                {0, 0}});
    for (std::size_t i = 0; i < padded.size(); ++i) {
      if (each->axis != padded[i]) continue;
      found.by_packed_.back().padded[i] =
          static_cast<std::uint32_t>(each->plain / step(each->axis));
    }
  }
  found.by_plain_ = found.by_packed_;
  std::sort(found.by_plain_.begin(),
            found.by_plain_.end(),
            [](const Digit& a, const Digit& b) { return a.plain > b.plain; });
  return found;
}

std::string LineOrder::text() const {
  std::string found = std::to_string(line_);
  for (const std::uint32_t limit : limits_) found += ' ' + std::to_string(limit);
  for (const Digit& each : by_packed_) {
    found += ' ' + std::to_string(each.extent) + ':' + std::to_string(each.plain);
  }
  return found;
}

template <class From>
void LineOrder::turn(char* array, std::vector<bool>& done, From from) const {
  std::vector<char> kept(plain_ > 1 ? line_ : 0);
  for (std::uint32_t first = 0; first < plain_; ++first) {
    if (done[first]) continue;
    std::uint32_t next = from(first);
    if (next == first) continue;
    std::memcpy(kept.data(), at(array, first), line_);
    std::uint32_t line = first;
    for (; next != first; line = next, next = from(line)) {
      std::memcpy(at(array, line), at(array, next), line_);
      done[next] = true;
    }
    std::memcpy(at(array, line), kept.data(), line_);
  }
}

// Where there is padding, places that hold nothing are filled first, then those that
// this leaves, and so on until one is padding.
void LineOrder::pack(char* array) const {
  std::vector<bool> done(packed_);
  for (std::uint32_t first = plain_; first < packed_; ++first) {
    std::uint32_t line = first;
    for (std::uint32_t next = source(line); next != kPadding; next = source(line)) {
      std::memcpy(at(array, line), at(array, next), line_);
      done[next] = true;
      line = next;
    }
    std::memset(at(array, line), 0, line_);
  }
  turn(array, done, [this](std::uint32_t line) { return source(line); });
}

void LineOrder::unpack(char* array) const {
  std::vector<bool> done(packed_);
  for (std::uint32_t first = 0; packed_ > plain_ && first < plain_; ++first) {
    if (source(first) != kPadding) continue;
    for (std::uint32_t line = first; line < plain_;) {
      const std::uint32_t next = target(line);
      std::memcpy(at(array, line), at(array, next), line_);
      done[line] = true;
      line = next;
    }
  }
  turn(array, done, [this](std::uint32_t line) { return target(line); });
}

void Repack::run(void* const* operands, void*, RunState* state) const {
  if (operands[0] != operands[1]) {
    copy_->run({operands[0], operands[1]},
               nullptr,
               static_cast<CallStates*>(state)->arguments[0]);
    return;
  }
  if (!order_) throw std::invalid_argument("this layout needs a place of its own");
  const auto array = static_cast<char*>(operands[1]);
  packs_ ? order_->pack(array) : order_->unpack(array);
}

std::optional<Packing> pack_operand(std::size_t operand,
                                    const OneDnn& library,
                                    const Plain& plain,
                                    const MemoryDesc* packed,
                                    std::unique_ptr<Kernel> kernel) {
  const Bytes bytes = library.api().memory_desc_get_size(packed);
  if (plain.bytes < kPackedLeast || !is_dense(plain.bytes, bytes)) return {};
  Call copy = reorder(library, plain.layout, packed);
  if (copy.scratch_bytes() != 0) return {};
  auto order = LineOrder::of(library, plain.layout, packed);
  Packing found{{operand}, nullptr, std::move(kernel), nullptr, {}};
  if (order) {
    Call back = reorder(library, packed, plain.layout);
    found.layout = order->text();
    found.unpack = std::make_unique<Repack>(
        Kernel::Sizes{{bytes}, {plain.bytes}}, std::move(back), order, false);
  }
  found.pack = std::make_unique<Repack>(
      Kernel::Sizes{{plain.bytes}, {bytes}}, std::move(copy), std::move(order), true);
  return found;
}

}  // namespace memcfg::onednn
