// Implements synthetic_runner.h: a forward as an instant at which it is done.
#include "kvlease/synthetic/synthetic_runner.h"

#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {

void SyntheticRunner::launch(Batch batch, Instant now) {
  KVL_CHECK(done_at_ == kNever, "one forward in flight");
  batch_ = std::move(batch);
  done_at_ = now + model_.forward_time(batch_);
}

std::optional<ModelOutput> SyntheticRunner::poll(Instant now) {
  if (now < done_at_) return {};
  done_at_ = kNever;
  return model_.compute(batch_);
}

}  // namespace kvlease
