#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/covering_program.hpp"

using memcfg::linear::CoveringProgram;
using memcfg::linear::Row;

namespace {

constexpr std::size_t kVariables = 3;
constexpr std::int64_t kEnough = 1'000'000;
constexpr double kInfinite = std::numeric_limits<double>::infinity();
using Point = std::array<double, kVariables>;

// A half-space: factors . x >= least.
struct Half {
  Point factors;
  double least;
};

double dot(const Point& a, const Point& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kVariables; ++i) sum += a[i] * b[i];
  return sum;
}

double determinant(const Point& a, const Point& b, const Point& c) {
  return a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) +
         a[2] * (b[0] * c[1] - b[1] * c[0]);
}

// The corner where three planes meet, by Cramer's rule; false if there is none.
bool corner(const Half& a, const Half& b, const Half& c, Point& x) {
  const double all = determinant(a.factors, b.factors, c.factors);
  if (std::abs(all) < 1e-9) return false;
  for (std::size_t i = 0; i < kVariables; ++i) {
    Half p = a, q = b, r = c;
    p.factors[i] = a.least;
    q.factors[i] = b.least;
    r.factors[i] = c.least;
    x[i] = determinant(p.factors, q.factors, r.factors) / all;
  }
  return true;
}

bool inside(const std::vector<Half>& halves, const Point& x) {
  for (const Half& half : halves)
    if (dot(half.factors, x) < half.least - 1e-7) return false;
  return true;
}

// The least cost in all corners of the rows and the unit cube; infinite: there are
// none.
double least_cost(const Point& costs, std::vector<Half> halves) {
  for (std::size_t i = 0; i < kVariables; ++i) {
    Point unit{};
    unit[i] = 1;
    halves.push_back({unit, 0});
    unit[i] = -1;
    halves.push_back({unit, -1});
  }
  double least = kInfinite;
  Point x;
  for (std::size_t i = 0; i < halves.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      for (std::size_t k = 0; k < j; ++k)
        if (corner(halves[i], halves[j], halves[k], x) && inside(halves, x))
          least = std::min(least, dot(costs, x));
  return least;
}

struct Problem {
  Point costs;
  std::vector<Half> halves;
};

Problem random_problem(unsigned seed) {
  std::mt19937 random(seed);
  Problem problem;
  for (double& cost : problem.costs) cost = static_cast<double>(random() % 10);
  for (std::size_t rows = 1 + random() % 5; rows > 0; --rows) {
    Half half;
    for (double& factor : half.factors) factor = static_cast<double>(random() % 5);
    half.least = static_cast<double>(1 + random() % 5);
    problem.halves.push_back(half);
  }
  return problem;
}

Row row_of(const Half& half) {
  Row row{{}, half.least};
  for (std::size_t i = 0; i < kVariables; ++i)
    if (half.factors[i] > 0)
      row.terms.emplace_back(static_cast<std::int32_t>(i), half.factors[i]);
  return row;
}

CoveringProgram program_of(const Problem& problem) {
  return CoveringProgram({problem.costs.begin(), problem.costs.end()});
}

Point point_of(const CoveringProgram& program) {
  Point x;
  for (std::size_t i = 0; i < kVariables; ++i)
    x[i] = program.value(static_cast<std::int32_t>(i));
  return x;
}

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-6 * (1 + std::abs(b));
}

}  // namespace

TEST(without_rows_nothing_costs_anything) {
  CoveringProgram program({3.0, 1.0});
  program.solve(kEnough);
  CHECK(program.bound() == 0 && program.value(0) == 0 && program.rows() == 0);
}

TEST(the_cheapest_cover_of_a_row_is_a_knapsack) {
  CoveringProgram program({6.0, 2.0, 9.0});
  program.add({{{0, 2.0}, {1, 1.0}, {2, 1.0}}, 2.0});  // per unit: 3, 2, 9
  program.solve(kEnough);
  CHECK(close(program.value(1), 1.0) && close(program.value(0), 0.5));
  CHECK(close(program.bound(), 5.0));
}

TEST(bounds_are_the_least_cost_of_all_corners) {
  int solved = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Problem problem = random_problem(seed);
    const double least = least_cost(problem.costs, problem.halves);
    if (least == kInfinite) continue;
    CoveringProgram program = program_of(problem);
    for (const Half& half : problem.halves) program.add(row_of(half));
    program.solve(kEnough);
    const Point x = point_of(program);
    CHECK(close(program.bound(), least) && close(dot(problem.costs, x), least));
    CHECK(program.bound() <= least + 1e-12 && inside(problem.halves, x));
    ++solved;
  }
  CHECK(solved > 1000);
}

TEST(rows_may_come_while_it_runs_and_go_when_they_hold_anyway) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Problem problem = random_problem(seed);
    const double least = least_cost(problem.costs, problem.halves);
    if (least == kInfinite) continue;
    CoveringProgram program = program_of(problem);
    for (const Half& half : problem.halves) {
      program.add(row_of(half));
      program.solve(kEnough);
      program.purge(0.25);
      CHECK(program.bound() <= least + 1e-9);
    }
    const double before = program.bound();
    program.solve(kEnough);
    CHECK(close(program.bound(), before));  // what went was not needed
    for (const Half& half : problem.halves) program.add(row_of(half));
    program.solve(kEnough);
    CHECK(close(program.bound(), least));
  }
}

TEST(little_effort_bounds_too) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Problem problem = random_problem(seed);
    const double least = least_cost(problem.costs, problem.halves);
    CoveringProgram program = program_of(problem);
    for (const Half& half : problem.halves) program.add(row_of(half));
    double last = 0;
    for (int turn = 0; turn < 50; ++turn) {
      program.solve(1);
      if (least == kInfinite) continue;
      CHECK(program.bound() <= least + 1e-9);
      last = program.bound();
    }
    CHECK(least == kInfinite || close(last, least));
  }
}
