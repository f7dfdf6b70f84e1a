// The functions of expressions for doubles: of numbers that are the same for all
// elements, and are computed once a run. Those for elements are in functions.hpp and
// powers.hpp.
#pragma once

#include <cmath>

#include "kernels/powers.hpp"

namespace memcfg {

inline double absolute_of(double x) {
  return std::abs(x);
}
// A NaN wins, as in NumPy.
inline double maximum_of(double x, double y) {
  return x > y || std::isnan(x) ? x : y;
}
inline double minimum_of(double x, double y) {
  return x < y || std::isnan(x) ? x : y;
}
inline double sqrt_of(double x) {
  return std::sqrt(x);
}
inline double exp_of(double x) {
  return std::exp(x);
}
inline double expm1_of(double x) {
  return std::expm1(x);
}
inline double log_of(double x) {
  return std::log(x);
}
inline double log1p_of(double x) {
  return std::log1p(x);
}
inline double tanh_of(double x) {
  return std::tanh(x);
}
inline double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double erf_of(double x) {
  return std::erf(x);
}
inline double power_of(double x, double y) {
  return std::pow(x, y);
}
inline double sin_of(double x) {
  return std::sin(x);
}
inline double cos_of(double x) {
  return std::cos(x);
}
inline double atan_of(double x) {
  return std::atan(x);
}
inline double fmod_of(double x, double y) {
  return std::fmod(x, y);
}
inline double floor_of(double x) {
  return std::floor(x);
}
inline double rounded_of(double x) {
  return static_cast<float>(x);
}
inline double blend(double condition, double yes, double no) {
  return condition != 0 ? yes : no;
}

}  // namespace memcfg
