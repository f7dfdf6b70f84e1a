// Numbers rounded to integers from -127 to 127 with one scale, and sums of products of
// them, which are exact in 32 bits.
//
// Processors without products of 8 bits that add up in 32 (VNNI) add pairs of them in
// 16, with saturation, and multiply unsigned by signed numbers only: sums are exact if
// the unsigned one has 7 bits (2 x 127 x 127 < 2^15). There oneDNN multiplies the
// magnitudes of positive numbers, and those of negative ones, one after the other. The
// integers are those of processors with VNNI.
#pragma once

#include <cstdint>

#include "kernels/parallel.hpp"
#include "memcfg/onednn.hpp"

namespace memcfg {

// x * factor is rounded to the nearest integer, which times `scale` is about x.
// Both are 0 for what is as good as zeros; `scale` is NaN if a number is not finite.
struct Rounding {
  float factor, scale;
};

// What is found out about a part of an array.
struct Extremes {
  std::uint32_t most;  // the largest magnitude, or NaN, as the bits of a number
  bool negative;       // whether there is a sign, also of 0

  Rounding rounding() const;
  void include(const Extremes& other);
};
Extremes extremes_of(const float* x, Count count);

enum class Magnitudes { of_all, of_positive, of_negative };  // of_all: with their sign

void round_to_integers(
    const float* x, Count count, float factor, Magnitudes which, std::int8_t* to);

// The rounding of each of some rows; returns whether a number has a sign.
bool find_roundings(const float* x, Count rows, Count columns, Rounding* to);
void round_rows(const float* x,
                Count rows,
                Count columns,
                const Rounding* of_rows,
                Magnitudes which,
                std::int8_t* to);

// Whether oneDNN multiplies signed numbers of 8 bits exactly: else it is to be given
// unsigned ones of 7.
bool multiplies_signed(const OneDnn& library);

// sums[m, count] += x[m, k] kernel[k, n], of `count` columns; rows of x and of sums
// begin `x_row` and `sums_row` behind each other. Two products of 8 bits add up in 16.
void add_integer_products(const std::int8_t* x,
                          Count x_row,
                          const std::int8_t* kernel,
                          Count m,
                          Count k,
                          Count n,
                          Count count,
                          std::int32_t* sums,
                          Count sums_row);

void subtract_sums(const std::int32_t* from, std::int32_t* sums, Count count);

// Sums become numbers in their place: times `scale` and the scales of their columns.
void scale_sums(float scale, const float* scales, Count rows, Count columns, float* y);

}  // namespace memcfg
