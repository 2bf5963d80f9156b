// The terminal that a person looks at: pictures out, keys in, and told when its size changes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "kvlease/base/result.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

struct TerminalSize {
  std::size_t columns = 80;
  std::size_t rows = 24;
};

// Whether stdout is a terminal.
bool stdout_is_terminal();
// Of the terminal at stdout; 80 × 24 when it does not say.
TerminalSize terminal_size();

// The terminal's second screen for as long as this lives: no cursor, and keys come as they are
// pressed. Interrupts (Ctrl-C) stay signals, Ctrl-Z has no effect.
class TerminalScreen {
 public:
  struct Callbacks {
    std::move_only_function<void(char key)> on_key;  // from the loop
    std::move_only_function<void()> on_resize;
  };

  // Requires: stdout is a terminal. `loop` outlives this.
  // Errors: kUnavailable when there is no terminal to read keys from.
  static Result<TerminalScreen> open(EventLoop& loop, Callbacks callbacks);

  TerminalScreen(TerminalScreen&&) noexcept;
  TerminalScreen& operator=(TerminalScreen&&) = delete;
  // Puts everything back.
  ~TerminalScreen();

  // Replaces the picture. `frame`: lines, each with its '\n', that fit the size.
  void draw(std::string_view frame);

  class Impl;

 private:
  explicit TerminalScreen(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace kvlease
