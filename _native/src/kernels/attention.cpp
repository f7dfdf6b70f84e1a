// Scaled dot-product attention without the matrix of scores (Dao, Fu, Ermon, Rudra and
// Re, "FlashAttention", NeurIPS 2022), and its gradient.
//
//   scores = scale * q k^T + mask * 1e9 - 1e9,  y = softmax(scores) v
//
// Operands are [batch, steps, heads, features], or without heads. Scores live in blocks
// of kBlock queries by kBlock keys; the softmax goes on from block to block, by the
// greatest score and the sum of exponentials so far. Forward keeps these two of each
// row: a row of which everything is masked has scores of -1e9, whose sum with a
// logarithm is lost in rounding. Backward computes the scores again, as the same chains
// of sums.
//
// With a rate the weights are dropped as by the op `dropout` (dropout.cpp), whose
// elements are those of the array [batch, heads, queries, keys].
//
// A piece of work (a block of queries; in backward a block of keys, or all of a head)
// is one thread's. In backward blocks of keys add to the gradient of queries one behind
// the other, whoever has them. So bits do not depend on how many threads there are.
// Pieces go to as many workers, each with blocks of its own in scratch, as there are
// threads when the kernel is made.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

#include "kernels/block_product.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/philox.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

// Blocks are multiplied by loops of our own: a call into oneDNN for each would take as
// long as the block.
constexpr Count kBlock = 64;     // queries, and keys, of a block
constexpr float kMasked = 1e9F;  // subtracted from the score of what is masked
constexpr float kLowest = std::numeric_limits<float>::lowest();

Count whole_panels(Count count) {
  return (count + kPanel - 1) / kPanel * kPanel;
}

// A mask is a factor of each pair; an axis of length 1 has a stride of 0.
struct Mask {
  int operand;
  Count batch, query, key;  // strides
};

// Which weights are kept, and what those are multiplied by.
struct Dropout {
  std::uint64_t key = 0;
  std::uint32_t threshold = 0;
  float scale = 1;   // 1: all are kept
  int step = -1;     // the operand; -1: there is none
  Count values = 1;  // of that operand
};

struct Attention {
  Count batch = 0, queries = 0, keys = 0, heads = 0;
  Count depth = 0, width = 0;  // features of queries and keys, and of values
  float scale = 1;
  bool causal = false;
  std::vector<Mask> masks{};
  Dropout dropout{};
  Bytes q_bytes = 0, k_bytes = 0, v_bytes = 0, y_bytes = 0, row_bytes = 0;
  std::vector<Bytes> mask_bytes{};

  // The operands are q, k, v and, behind `between` others, the masks.
  Attention(const SpecReader& reader, const KernelSpec& spec, std::size_t between) {
    const std::size_t rank = spec.inputs[0].shape.size() == 3 ? 3 : 4;
    const auto with_heads = [&](std::size_t i) {
      std::vector<Count> shape = reader.shape(spec.inputs[i], rank);
      if (rank == 3) shape.insert(shape.begin() + 2, 1);
      return shape;
    };
    const auto q = with_heads(0), k = with_heads(1), v = with_heads(2);
    batch = q[0], queries = q[1], heads = q[2], depth = q[3];
    keys = k[1], width = v[3];
    if (k != std::vector<Count>{batch, keys, heads, depth} ||
        v != std::vector<Count>{batch, keys, heads, width}) {
      reader.fail("needs queries, keys and values of one batch and of as many heads");
    }
    scale = static_cast<float>(reader.real("scale"));
    causal = reader.has("causal") && reader.integer("causal", 0) != 0;
    std::size_t end = spec.inputs.size();
    if (reader.has("rate")) {
      const double rate = reader.real("rate");
      if (!(rate >= 0 && rate < 1)) reader.fail("needs 0 <= rate < 1");
      dropout = {static_cast<std::uint64_t>(reader.integer("key", 0)),
                 static_cast<std::uint32_t>(std::floor(std::ldexp(rate, 32))),
                 static_cast<float>(1 / (1 - rate)),
                 static_cast<int>(end - 1),
                 reader.count(spec.inputs[end - 1])};
      --end;
    }
    for (std::size_t i = 3 + between; i < end; ++i) {
      const auto& of = reader.shape(spec.inputs[i], 3);
      if (of[0] != batch || (of[1] != 1 && of[1] != queries) ||
          (of[2] != 1 && of[2] != keys)) {
        reader.fail("needs masks of [batch, queries or 1, keys or 1]");
      }
      masks.push_back({static_cast<int>(i),
                       of[1] * of[2],
                       of[1] == 1 ? 0 : of[2],
                       of[2] == 1 ? 0 : Count{1}});
    }
    reader.product({batch, heads, queries, std::max(depth, width)});
    q_bytes = reader.bytes(spec.inputs[0]);
    k_bytes = reader.bytes(spec.inputs[1]);
    v_bytes = reader.bytes(spec.inputs[2]);
    y_bytes = float_bytes(rows() * width);
    row_bytes = float_bytes(rows());
    for (const Mask& mask : masks) {
      const auto place = static_cast<std::size_t>(mask.operand);
      mask_bytes.push_back(reader.bytes(spec.inputs[place]));
    }
  }

  Count rows() const { return batch * heads * queries; }

  // Operands behind q, k, v and what is saved.
  int others() const {
    return static_cast<int>(masks.size()) + static_cast<int>(dropout.step >= 0);
  }
  philox::Position position(void* const* operands) const {
    return {operands[dropout.step], dropout.values, rows() * keys};
  }

  Kernel::Sizes sizes() const {
    return {with_others({q_bytes, k_bytes, v_bytes}), {y_bytes, row_bytes, row_bytes}};
  }
  Kernel::Sizes sizes_of_gradient() const {
    return {with_others(
                {q_bytes, k_bytes, v_bytes, y_bytes, row_bytes, row_bytes, y_bytes}),
            {q_bytes, k_bytes, v_bytes}};
  }

 private:
  std::vector<Bytes> with_others(std::vector<Bytes> operands) const {
    operands.insert(operands.end(), mask_bytes.begin(), mask_bytes.end());
    if (dropout.step >= 0) {
      operands.push_back(static_cast<Bytes>(dropout.values) * sizeof(std::int64_t));
    }
    return operands;
  }
};

// Scratch of a worker: blocks of whole panels.
class Blocks {
 public:
  explicit Blocks(std::byte* base = nullptr) : base_(base) {}

  float* take(Count rows, Count columns) {
    auto* const place = reinterpret_cast<float*>(base_ + taken_);
    taken_ += align_up(float_bytes(rows * columns));
    return place;
  }
  Bytes taken() const { return taken_; }

 private:
  std::byte* base_;
  Bytes taken_ = 0;
};

// to[c][r] = from[r][c], for r < kBlock; zeros from `rows` on to the next panel.
void transpose(const float* from, Count stride, Count rows, Count columns, float* to) {
  const Count whole = whole_panels(rows);
  for (Count first = 0; first < columns; first += kPanel) {
    const Count last = std::min(columns, first + kPanel);
    for (Count r = 0; r < rows; ++r) {
      const float* const row = from + r * stride;
      for (Count c = first; c < last; ++c) to[c * kBlock + r] = row[c];
    }
  }
  for (Count c = 0; c < columns; ++c) {
    for (Count r = rows; r < whole; ++r) to[c * kBlock + r] = 0.0F;
  }
}

// to[r][c] = from[c][r] * factors[r]
void transpose_back(const float* from,
                    const float* factors,
                    Count rows,
                    Count columns,
                    float* to,
                    Count stride) {
  for (Count first = 0; first < columns; first += kPanel) {
    const Count last = std::min(columns, first + kPanel);
    for (Count r = 0; r < rows; ++r) {
      const float factor = factors == nullptr ? 1.0F : factors[r];
      float* const row = to + r * stride;
      for (Count c = first; c < last; ++c) row[c] = from[c * kBlock + r] * factor;
    }
  }
}

// Rows in the distance of `width`, which has whole panels: zeros behind each.
void pack(const float* from,
          Count stride,
          Count rows,
          Count columns,
          Count width,
          float* to) {
  for (Count r = 0; r < rows; ++r) {
    std::copy_n(from + r * stride, columns, to + r * width);
    std::fill(to + r * width + columns, to + (r + 1) * width, 0.0F);
  }
}

// What is added to a block of scores, whose rows or columns are the keys.
struct Masked {
  const Attention& of;
  void* const* operands;
  Count batch;

  bool any() const { return !of.masks.empty(); }

  // bias[r][c], for the first query and key; beyond `columns` any of them.
  void fill(Count query,
            Count key,
            Count rows,
            Count columns,
            bool keys_are_rows,
            float* bias) const {
    bool begun = false;
    for (const Mask& mask : of.masks) {
      const float* const from = input(operands, mask.operand) + batch * mask.batch +
                                query * mask.query + key * mask.key;
      const Count row = keys_are_rows ? mask.key : mask.query;
      const Count column = keys_are_rows ? mask.query : mask.key;
      for (Count r = 0; r < rows; ++r) {
        float* const to = bias + r * kBlock;
        for (Count c = 0; c < columns; ++c) {
          const float value = from[r * row + c * column];
          to[c] = begun ? to[c] * value : value;
        }
      }
      begun = true;
    }
    for (Count r = 0; r < rows; ++r) {
      float* const to = bias + r * kBlock;
      for (Count c = 0; c < columns; ++c) to[c] = to[c] * kMasked + -kMasked;
      std::fill(to + columns, to + whole_panels(columns), 0.0F);
    }
  }
};

// A block of products becomes scores; queries are columns, of which the c-th sees the
// keys up to `seen + c` of these if that is asked for.
MEMCFG_VECTORIZED void finish_scores(float* scores,
                                     const float* bias,
                                     Count keys,
                                     Count columns,
                                     float scale,
                                     bool causal,
                                     Count seen) {
  for (Count j = 0; j < keys; ++j) {
    float* const row = scores + j * kBlock;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) row[c] *= scale;
    if (bias != nullptr) {
      const float* const added = bias + j * kBlock;
      MEMCFG_INDEPENDENT
      for (Count c = 0; c < columns; ++c) row[c] += added[c];
    }
    if (!causal) continue;
    const Count hidden = std::min(columns, j - seen);  // the first ones
    for (Count c = 0; c < hidden; ++c) row[c] = -kInfinity;
  }
}

// The softmax goes on: scores become exponentials; `factors` are for what was summed
// before. Rows of which all scores are -inf sum to 0.
MEMCFG_VECTORIZED void add_exponentials(float* scores,
                                        Count keys,
                                        Count columns,
                                        float* most,
                                        float* totals,
                                        float* factors) {
  float next[kBlock], sums[kBlock];
  for (Count c = 0; c < columns; ++c) next[c] = most[c];
  for (Count j = 0; j < keys; ++j) {
    const float* const row = scores + j * kBlock;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) next[c] = maximum_of(next[c], row[c]);
  }
  MEMCFG_INDEPENDENT
  for (Count c = 0; c < columns; ++c) {
    factors[c] = exp_of(most[c] - next[c]);
    sums[c] = totals[c] * factors[c];
    most[c] = next[c];
  }
  for (Count j = 0; j < keys; ++j) {
    float* const row = scores + j * kBlock;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      const float power = exp_of(row[c] - next[c]);
      row[c] = power;
      sums[c] += power;
    }
  }
  for (Count c = 0; c < columns; ++c) totals[c] = sums[c];
}

MEMCFG_VECTORIZED void multiply_rows(float* x,
                                     const float* factors,
                                     Count rows,
                                     Count columns) {
  for (Count r = 0; r < rows; ++r) {
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) x[r * kBlock + c] *= factors[c];
  }
}

// The bits of the keys [key, key + keys) that are kept, for `count` queries from
// `query` on; `row` is the first one of the matrix among all rows.
MEMCFG_VECTORIZED void keep(const Dropout& dropout,
                            const philox::Position& position,
                            Count keys_in_all,
                            Count row,
                            Count count,
                            Count key,
                            std::uint64_t* kept) {
  constexpr int kFours = kBlock / 4;  // counters of a row, and one where it is cut
  const bool cut = keys_in_all % 4 != 0 || position.first % 4 != 0;
  const int each = cut ? philox::kLanes : kFours;
  const Count at_once = philox::kLanes / each;  // rows
  for (Count i = 0; i < count; i += at_once) {
    philox::Words x;
    for (int lane = 0; lane < philox::kLanes; ++lane) {
      x.word[2][lane] = static_cast<std::uint32_t>(position.step);
      x.word[3][lane] = static_cast<std::uint32_t>(position.step >> 32);
    }
    for (Count r = 0; r < at_once; ++r) {
      const Count element = position.first + (row + i + r) * keys_in_all + key;
      const auto first = static_cast<std::uint64_t>(element) / 4;
      std::uint32_t* const low = x.word[0] + r * each;
      std::uint32_t* const high = x.word[1] + r * each;
      MEMCFG_INDEPENDENT
      for (int lane = 0; lane < each; ++lane) {
        const std::uint64_t counter = first + static_cast<std::uint64_t>(lane);
        low[lane] = static_cast<std::uint32_t>(counter);
        high[lane] = static_cast<std::uint32_t>(counter >> 32);
      }
    }
    philox::generate(x, dropout.key);
    std::uint32_t fours[philox::kLanes] = {};
    for (int word = 0; word < 4; ++word) {
      for (int lane = 0; lane < philox::kLanes; ++lane) {
        const bool stays = x.word[word][lane] >= dropout.threshold;
        fours[lane] |= static_cast<std::uint32_t>(stays) << word;
      }
    }
    for (Count r = i; r < std::min(count, i + at_once); ++r) {
      const std::uint32_t* const own = fours + (r - i) * each;
      std::uint64_t bits = 0;
      for (int lane = 0; lane < kFours; ++lane) {
        bits |= std::uint64_t{own[lane]} << (4 * lane);
      }
      const Count element = position.first + (row + r) * keys_in_all + key;
      const auto ahead = static_cast<unsigned>(element % 4);
      if (ahead != 0) {
        bits = bits >> ahead | std::uint64_t{own[kFours]} << (kBlock - ahead);
      }
      kept[r] = bits;
    }
  }
}

// Weights that are dropped become 0; queries are columns.
MEMCFG_VECTORIZED void drop_columns(float* weights,
                                    Count keys,
                                    Count columns,
                                    const std::uint64_t* kept) {
  std::uint32_t halves[2][kBlock];
  for (Count c = 0; c < columns; ++c) {
    halves[0][c] = static_cast<std::uint32_t>(kept[c]);
    halves[1][c] = static_cast<std::uint32_t>(kept[c] >> 32);
  }
  for (Count j = 0; j < keys; ++j) {
    const std::uint32_t* const bits = halves[j / 32];
    float* const row = weights + j * kBlock;
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) {
      row[c] = blend(0U - (bits[c] >> (j % 32) & 1U), row[c], 0.0F);
    }
  }
}

struct ForwardBlocks : Blocks {
  float *q, *v, *scores, *bias, *y, *most, *totals, *factors;

  ForwardBlocks(const Attention& of, std::byte* base) : Blocks(base) {
    q = take(of.depth, kBlock);
    v = take(kBlock, of.width);
    scores = take(kBlock, kBlock);
    bias = of.masks.empty() ? nullptr : take(kBlock, kBlock);
    y = take(of.width, kBlock);
    most = take(1, kBlock);
    totals = take(1, kBlock);
    factors = take(1, kBlock);
  }
};

// One block of queries of one head.
void attend(const Attention& of,
            void* const* o,
            const ForwardBlocks& blocks,
            Count batch,
            Count head,
            Count query) {
  const int outputs = 3 + of.others();
  const Count step = of.heads * of.depth, v_step = of.heads * of.width;
  const Count count = std::min(kBlock, of.queries - query);
  const Count columns = whole_panels(count);
  const float* const q =
      input(o, 0) + (batch * of.queries + query) * step + head * of.depth;
  const float* const k = input(o, 1) + batch * of.keys * step + head * of.depth;
  const float* const v = input(o, 2) + batch * of.keys * v_step + head * of.width;
  const Masked masked{of, o, batch};
  const Count row = (batch * of.heads + head) * of.queries + query;

  transpose(q, step, count, of.depth, blocks.q);
  std::fill_n(blocks.y, of.width * kBlock, 0.0F);
  std::fill_n(blocks.most, kBlock, kLowest);
  std::fill_n(blocks.totals, kBlock, 0.0F);
  const Count end = of.causal ? std::min(of.keys, query + count) : of.keys;
  for (Count key = 0; key < end; key += kBlock) {
    const Count keys = std::min(kBlock, end - key);
    multiply({k + key * step,
              step,
              1,
              blocks.q,
              kBlock,
              blocks.scores,
              kBlock,
              keys,
              of.depth,
              columns});
    if (masked.any()) masked.fill(query, key, keys, count, true, blocks.bias);
    finish_scores(blocks.scores,
                  blocks.bias,
                  keys,
                  columns,
                  of.scale,
                  of.causal && key + keys > query,
                  query - key);
    add_exponentials(
        blocks.scores, keys, columns, blocks.most, blocks.totals, blocks.factors);
    if (of.dropout.step >= 0) {
      std::uint64_t kept[kBlock] = {};
      keep(of.dropout, of.position(o), of.keys, row, count, key, kept);
      drop_columns(blocks.scores, keys, columns, kept);
    }
    if (key > 0) multiply_rows(blocks.y, blocks.factors, of.width, columns);
    pack(v + key * v_step, v_step, keys, of.width, of.width, blocks.v);
    multiply({blocks.v,
              1,
              of.width,
              blocks.scores,
              kBlock,
              blocks.y,
              kBlock,
              of.width,
              keys,
              columns,
              true});
  }
  std::copy_n(blocks.most, count, output(o, outputs + 1) + row);
  std::copy_n(blocks.totals, count, output(o, outputs + 2) + row);
  for (Count c = 0; c < count; ++c) {
    blocks.factors[c] = of.dropout.scale / blocks.totals[c];
  }
  float* const y =
      output(o, outputs) + (batch * of.queries + query) * v_step + head * of.width;
  transpose_back(blocks.y, blocks.factors, count, of.width, y, v_step);
}

// Runs piece(i, scratch of the worker that has it), for i below `pieces`.
template <class Piece>
void share(Count pieces,
           Count workers,
           Count cost,
           std::byte* scratch,
           Bytes each,
           const Piece& piece) {
  parallel_for(workers, cost, [&](Count worker) {
    std::byte* const own = scratch + static_cast<Bytes>(worker) * each;
    for (Count i = worker; i < pieces; i += workers) piece(i, own);
  });
}

// The dtypes of the inputs: floats, and the step behind them.
SpecReader::Dtypes inputs_of(const KernelSpec& spec, std::size_t least) {
  SpecReader::Dtypes found(std::max(spec.inputs.size(), least), kFloat32);
  if (spec.attributes.count("rate") != 0) found.back() = kInt64;
  return found;
}

KernelPtr make_attention(const KernelSpec& spec) {
  const SpecReader reader(spec, inputs_of(spec, 3), {kFloat32, kFloat32, kFloat32});
  const Attention of(reader, spec, 0);
  const Count blocks = (of.queries + kBlock - 1) / kBlock;
  const Count pieces = reader.product({of.batch, of.heads, blocks});
  const Count cost = reader.product({of.rows(), of.keys, of.depth + of.width});
  const Count workers = std::min<Count>(pieces, max_threads());
  const Bytes each = ForwardBlocks(of, nullptr).taken();
  return function_kernel(of.sizes(),
                         static_cast<Bytes>(workers) * each,
                         [=](void* const* o, void* scratch) {
                           share(pieces,
                                 workers,
                                 cost,
                                 static_cast<std::byte*>(scratch),
                                 each,
                                 [&](Count i, std::byte* own) {
                                   const Count head = i / blocks;
                                   attend(of,
                                          o,
                                          ForwardBlocks(of, own),
                                          head / of.heads,
                                          head % of.heads,
                                          i % blocks * kBlock);
                                 });
                         });
}

// A row of products becomes weights, of which some are dropped, and the gradients of
// the scores. `inverse` is of the row's total.
MEMCFG_VECTORIZED void differentiate_row(float* scores,
                                         float* slopes,
                                         const float* bias,
                                         Count columns,
                                         float scale,
                                         float most,
                                         float inverse,
                                         float mean,
                                         std::uint64_t kept,
                                         float kept_scale) {
  MEMCFG_INDEPENDENT
  for (Count c = 0; c < columns; ++c) scores[c] *= scale;
  if (bias != nullptr) {
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) scores[c] += bias[c];
  }
  for (Count half = 0; half < columns; half += 32) {
    const auto bits = static_cast<std::uint32_t>(kept >> half);
    const Count end = std::min<Count>(32, columns - half);
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < end; ++c) {
      const std::uint32_t mask = 0U - (bits >> c & 1U);
      const float weight = exp_of(scores[half + c] - most) * inverse;
      const float slope = blend(mask, slopes[half + c] * kept_scale, 0.0F);
      scores[half + c] = blend(mask, weight * kept_scale, 0.0F);
      slopes[half + c] = weight * (slope - mean) * scale;
    }
  }
}

MEMCFG_VECTORIZED void add_rows(const float* from,
                                Count width,
                                Count rows,
                                Count columns,
                                float* to,
                                Count stride) {
  for (Count r = 0; r < rows; ++r) {
    MEMCFG_INDEPENDENT
    for (Count c = 0; c < columns; ++c) to[r * stride + c] += from[r * width + c];
  }
}

// The sum of x * y, in lanes whose number is fixed.
MEMCFG_VECTORIZED float dot(const float* x, const float* y, Count count) {
  float lanes[kPanel] = {};
  Count c = 0;
  for (; c + kPanel <= count; c += kPanel) {
    for (Count i = 0; i < kPanel; ++i) lanes[i] += x[c + i] * y[c + i];
  }
  for (Count i = 0; c < count; ++c, ++i) lanes[i] += x[c] * y[c];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

struct BackwardBlocks : Blocks {
  Count wide, wide_v;  // features in whole panels
  float *k, *k_turned, *v_turned, *q, *dy, *scores, *slopes, *bias;
  float *dq, *dk, *dv;

  BackwardBlocks(const Attention& of, std::byte* base) : Blocks(base) {
    wide = whole_panels(of.depth);
    k = take(kBlock, wide);
    k_turned = take(of.depth, kBlock);
    v_turned = take(of.width, kBlock);
    q = take(kBlock, of.depth);
    dy = take(kBlock, of.width);
    scores = take(kBlock, kBlock);
    slopes = take(kBlock, kBlock);
    bias = of.masks.empty() ? nullptr : take(kBlock, kBlock);
    dq = take(kBlock, wide);
    dk = take(of.depth, kBlock);
    dv = take(of.width, kBlock);
  }
};

// Up to which query a block of keys has added to the gradient of queries.
using Progress = std::atomic<Count>;

// Waits for another thread, which is at work there.
void await(const Progress& done, Count query) {
  constexpr int kSpins = 1000;
  for (int turn = 0; done.load(std::memory_order_acquire) < query; ++turn) {
    if (turn >= kSpins) std::this_thread::yield();
  }
}

// The inputs of the gradient: q, k, v, y, most, totals, dy and the masks.
struct Backward {
  const Attention& of;
  void* const* o;
  const float* means;  // of each row: the sum of y * dy
  const BackwardBlocks& blocks;
  Progress* done;  // of each of the head's blocks of keys
  Count batch, head;

  Count step() const { return of.heads * of.depth; }
  Count v_step() const { return of.heads * of.width; }
  Count place(Count steps, Count at) const {
    return (batch * steps + at) * step() + head * of.depth;
  }
  Count v_place(Count steps, Count at) const {
    return (batch * steps + at) * v_step() + head * of.width;
  }
  int outputs() const { return 7 + of.others(); }

  void differentiate(Count block) const {
    const Count key = block * kBlock;
    const Count keys = std::min(kBlock, of.keys - key);
    const float* const k = input(o, 1) + place(of.keys, key);
    const float* const v = input(o, 2) + v_place(of.keys, key);
    pack(k, step(), keys, of.depth, blocks.wide, blocks.k);
    transpose(k, step(), keys, of.depth, blocks.k_turned);
    transpose(v, v_step(), keys, of.width, blocks.v_turned);
    std::fill_n(blocks.dk, of.depth * kBlock, 0.0F);
    std::fill_n(blocks.dv, of.width * kBlock, 0.0F);
    const Count first = of.causal ? key : 0;  // a multiple of kBlock
    for (Count query = first; query < of.queries; query += kBlock) {
      const Count count = std::min(kBlock, of.queries - query);
      compute_block(query, count, key, keys);
      add_queries(query, count, block);
    }
    float* const dk = output(o, outputs() + 1) + place(of.keys, key);
    float* const dv = output(o, outputs() + 2) + v_place(of.keys, key);
    transpose_back(blocks.dk, nullptr, keys, of.depth, dk, step());
    transpose_back(blocks.dv, nullptr, keys, of.width, dv, v_step());
  }

  // Behind the block of keys before; it has these queries, too.
  void add_queries(Count query, Count count, Count block) const {
    float* const dq = output(o, outputs()) + place(of.queries, query);
    if (block > 0) {
      await(done[block - 1], query + count);
    } else {
      for (Count i = 0; i < count; ++i) std::fill_n(dq + i * step(), of.depth, 0.0F);
    }
    add_rows(blocks.dq, blocks.wide, count, of.depth, dq, step());
    done[block].store(query + count, std::memory_order_release);
  }

  void compute_block(Count query, Count count, Count key, Count keys) const {
    const Count columns = whole_panels(keys);
    pack(input(o, 0) + place(of.queries, query),
         step(),
         count,
         of.depth,
         of.depth,
         blocks.q);
    pack(input(o, 6) + v_place(of.queries, query),
         v_step(),
         count,
         of.width,
         of.width,
         blocks.dy);
    multiply({blocks.q,
              of.depth,
              1,
              blocks.k_turned,
              kBlock,
              blocks.scores,
              kBlock,
              count,
              of.depth,
              columns});
    multiply({blocks.dy,
              of.width,
              1,
              blocks.v_turned,
              kBlock,
              blocks.slopes,
              kBlock,
              count,
              of.width,
              columns});
    const Masked masked{of, o, batch};
    if (masked.any()) masked.fill(query, key, count, keys, false, blocks.bias);
    const Count row = (batch * of.heads + head) * of.queries + query;
    std::uint64_t kept[kBlock];
    std::fill_n(kept, kBlock, ~std::uint64_t{0});
    if (of.dropout.step >= 0) {
      keep(of.dropout, of.position(o), of.keys, row, count, key, kept);
    }
    for (Count i = 0; i < count; ++i) {
      float* const scores = blocks.scores + i * kBlock;
      float* const slopes = blocks.slopes + i * kBlock;
      const float* const bias = masked.any() ? blocks.bias + i * kBlock : nullptr;
      differentiate_row(scores,
                        slopes,
                        bias,
                        columns,
                        of.scale,
                        input(o, 4)[row + i],
                        1.0F / input(o, 5)[row + i],
                        means[row + i],
                        kept[i],
                        of.dropout.scale);
      if (!of.causal) continue;
      for (Count c = query + i - key + 1; c < keys; ++c) scores[c] = slopes[c] = 0.0F;
    }
    multiply({blocks.dy,
              1,
              of.width,
              blocks.scores,
              kBlock,
              blocks.dv,
              kBlock,
              of.width,
              count,
              columns,
              true});
    multiply({blocks.q,
              1,
              of.depth,
              blocks.slopes,
              kBlock,
              blocks.dk,
              kBlock,
              of.depth,
              count,
              columns,
              true});
    multiply({blocks.slopes,
              kBlock,
              1,
              blocks.k,
              blocks.wide,
              blocks.dq,
              blocks.wide,
              count,
              keys,
              blocks.wide});
  }
};

// Hands pieces out in their order, so that whoever waits for one does so for a thread.
class Pieces {
 public:
  Pieces(Count pieces, Count blocks, std::byte* scratch)
      : pieces_(pieces), next_(new (scratch) Progress(0)), done_(next_ + 1) {
    for (Count i = 0; i < blocks; ++i) new (done_ + i) Progress(0);
  }
  static Bytes bytes(Count blocks) {
    return align_up(static_cast<Bytes>(blocks + 1) * sizeof(Progress));
  }

  Count take() const { return next_->fetch_add(1, std::memory_order_relaxed); }
  Count count() const { return pieces_; }
  Progress* done(Count block) const { return done_ + block; }

 private:
  Count pieces_;
  Progress* next_;
  Progress* done_;
};

constexpr Count kEnough = 4;  // heads a thread, of which each is one thread's then

KernelPtr make_attention_gradient(const KernelSpec& spec) {
  const SpecReader reader(spec, inputs_of(spec, 7), {kFloat32, kFloat32, kFloat32});
  const Attention of(reader, spec, 4);
  const Count heads = reader.product({of.batch, of.heads});
  const Count blocks = (of.keys + kBlock - 1) / kBlock;  // of a head's keys
  const Count cost = reader.product({of.rows(), of.keys, of.depth + of.width});
  const Count threads = max_threads();
  const bool whole = heads % threads == 0 || heads >= kEnough * threads;
  const Count each = whole ? blocks : 1;  // blocks of a piece
  const Count pieces = heads * blocks / each;
  const Count workers = std::min(pieces, threads);
  const Bytes own = BackwardBlocks(of, nullptr).taken();
  const Bytes means_bytes = align_up(float_bytes(of.rows()));
  const Bytes ahead = means_bytes + Pieces::bytes(heads * blocks);
  return function_kernel(
      of.sizes_of_gradient(),
      ahead + static_cast<Bytes>(workers) * own,
      [=](void* const* o, void* given) {
        auto* const scratch = static_cast<std::byte*>(given);
        float* const means = static_cast<float*>(given);
        parallel_chunks(of.rows(), kBlock, [=](Count row, Count count) {
          for (Count i = row; i < row + count; ++i) {
            const Count head = i / of.queries, query = i % of.queries;
            const Count batch = head / of.heads * of.queries + query;
            const Count at = (batch * of.heads + head % of.heads) * of.width;
            means[i] = dot(input(o, 3) + at, input(o, 6) + at, of.width);
          }
        });
        const Pieces all(pieces, heads * blocks, scratch + means_bytes);
        parallel_for(workers, cost, [&](Count worker) {
          const BackwardBlocks mine(of,
                                    scratch + ahead + static_cast<Bytes>(worker) * own);
          for (Count piece = all.take(); piece < all.count(); piece = all.take()) {
            const Count first = piece * each, head = first / blocks;
            const Backward one{of,
                               o,
                               means,
                               mine,
                               all.done(head * blocks),
                               head / of.heads,
                               head % of.heads};
            for (Count i = 0; i < each; ++i) one.differentiate(first % blocks + i);
          }
        });
      });
}

const KernelType kAttention{
    "scaled_dot_product_attention", make_attention, Floats::samples};
const KernelType kAttentionGradient{
    "scaled_dot_product_attention_gradient", make_attention_gradient, Floats::samples};

}  // namespace
}  // namespace memcfg
