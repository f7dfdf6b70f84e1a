#include "kernels/primitive.hpp"

#include <cstring>

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

Owned<Attributes> with_post_ops(const OneDnn& library, Post post) {
  const Api& api = library.api();
  PostOps* made = nullptr;
  library.check(api.post_ops_create(&made), "making post-ops");
  const Owned<PostOps> owned(made, api.post_ops_destroy);
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

std::optional<Packing> pack_operand(std::size_t operand,
                                    const OneDnn& library,
                                    const Plain& plain,
                                    const MemoryDesc* packed,
                                    std::unique_ptr<Kernel> kernel) {
  const Bytes bytes = library.api().memory_desc_get_size(packed);
  if (plain.bytes < kPackedLeast || !is_dense(plain.bytes, bytes)) return {};
  Call copy = reorder(library, plain.layout, packed);
  if (copy.scratch_bytes() != 0) return {};
  auto pack = std::make_unique<CallKernel>(Kernel::Sizes{{plain.bytes}, {bytes}},
                                           std::move(copy),
                                           std::vector<std::size_t>{0, 1});
  return Packing{{operand}, std::move(pack), std::move(kernel)};
}

}  // namespace memcfg::onednn
