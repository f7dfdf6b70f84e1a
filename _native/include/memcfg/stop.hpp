// Whether a search is to end before its work is done: somebody is asked.
#pragma once

#include <cstdint>

namespace memcfg {

// Asks whoever waits whether to end; never, if nobody is to be asked.
struct Stop {
  bool (*ask)(void*) = nullptr;
  void* whom = nullptr;

  bool now() const { return ask != nullptr && ask(whom); }
};

// Asks now and then, as work is counted; once it is over, it stays so.
class Watch {
 public:
  // `every`: the work between two questions.
  Watch(const Stop& stop, std::int64_t every) : stop_(stop), every_(every) {}

  bool is_over(std::int64_t work) {
    if (!over_ && work >= next_) {
      next_ = work + every_;
      over_ = stop_.now();
    }
    return over_;
  }

 private:
  Stop stop_;
  std::int64_t every_, next_ = 0;
  bool over_ = false;
};

}  // namespace memcfg
