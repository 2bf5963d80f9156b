// One picture of running instances as text, for a terminal or a file: a pure function of what was
// seen and of the room that there is.
#pragma once

#include <cstddef>
#include <string>

#include "kvlease/obs/cluster_view.h"

namespace kvlease {

struct TopFrameOptions {
  std::size_t width = 100;   // columns; no line is longer
  std::size_t height = 0;    // lines at most; 0: as many as there is to show
  bool color = false;        // SGR sequences, which take no room
  bool interactive = false;  // names the keys
};

// Lines, each with its '\n'. Whatever the view's texts hold, only printable ASCII and our own
// sequences come out (L44).
std::string top_frame(const ClusterView& view, const TopFrameOptions& options);

}  // namespace kvlease
