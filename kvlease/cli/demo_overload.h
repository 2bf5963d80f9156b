// `kvlease demo --overload`: offers a prefill and a decode instance three times what they can do.
#pragma once

#include <cstdint>
#include <string>

namespace kvlease {

struct OverloadOptions {
  std::uint32_t seconds = 60;
  bool json = false;
  std::string nixl_path;
};

// Measures capacity and overload in turns, in one run, and prints the figures. Returns 0 when no
// lease ended that a decoder still wanted, every text was right, the ledger balances, and the
// overloaded instances did at least nine tenths of what they can do.
int run_overload(const OverloadOptions& options);

}  // namespace kvlease
