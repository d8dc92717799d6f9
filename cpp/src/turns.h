// Which executions do something while they wait for a GPU.
#pragma once

#include <algorithm>
#include <chrono>

namespace weightstream {

// Where threads take turns to run, as in Python, what is done during a wait may last longer than the wait. So one that
// takes a millisecond is the last one of its execution, and executions behind it only wait: one, and twice as many each
// time, up to 128, until an execution has no such one. A thread that is stopped for once costs little.
class Turns {
 public:
  static constexpr std::chrono::milliseconds kTooLong{1};
  static constexpr unsigned kMost = 128;

  // An execution begins: whether it may.
  bool next() {
    if (plain_ > 0) {
      --plain_;
      return false;
    }
    behind_ = slow_ ? behind_ : 1;
    slow_ = false;
    return true;
  }

  // Whether this execution may go on with it.
  bool may_go_on() const { return !slow_; }

  void took(std::chrono::nanoseconds time) {
    if (time >= kTooLong) {
      slow_ = true;
      plain_ = behind_;
      behind_ = std::min(2 * behind_, kMost);
    }
  }

 private:
  // Of the execution that may, whether one took too long.
  bool slow_ = false;
  // Executions that only wait from now on, and behind the next one that takes too long.
  unsigned plain_ = 0;
  unsigned behind_ = 1;
};

}  // namespace weightstream
