// How many blocks the requests for each decode instance pin on each prefill instance, so that a
// decoder which does not keep up cannot take a P away from the others (F14). A request counts from
// before its prefill, by an estimate, until D's first byte.
#pragma once

#include <cstddef>
#include <vector>

namespace kvlease {

class PinnedBlocks {
 public:
  // `share`: of a P's budget of leased blocks that may be pinned for one decoder.
  // Requires: both counts > 0; 0 < share <= 1.
  PinnedBlocks(std::size_t prefills, std::size_t decodes, double share);

  // P's budget as it says (`blocks_leased_max`); until it has, every request fits.
  void set_budget(std::size_t prefill, std::size_t blocks);

  // Whether `blocks` more may be pinned on P for D. A request alone always fits: P knows best what
  // could never fit.
  bool fits(std::size_t prefill, std::size_t decode, std::size_t blocks) const;
  std::size_t pinned(std::size_t prefill, std::size_t decode) const;

  // What a request with a body of so many bytes will pin, judged by those before it; 0 without any.
  std::size_t estimate(std::size_t body_bytes) const;
  // What one did pin.
  void learn(std::size_t body_bytes, std::size_t blocks);

  // One request's blocks; given back when it is destroyed or assigned to.
  class Pin {
   public:
    Pin() = default;  // of nothing
    // `owner` outlives this.
    Pin(PinnedBlocks& owner, std::size_t prefill, std::size_t decode, std::size_t blocks);
    Pin(Pin&& other) noexcept;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();

   private:
    std::size_t* cell_ = nullptr;
    std::size_t blocks_ = 0;
  };

 private:
  std::size_t decodes_;
  double share_;
  std::vector<std::size_t> budgets_;  // by prefill; 0: not known
  std::vector<std::size_t> pinned_;   // by prefill, then decode
  double blocks_per_byte_ = 0;        // a moving average
};

}  // namespace kvlease
