// Runs a SyntheticModel in the loop's own thread and in whatever time the loop lives in: a
// forward's bytes are written when its time has passed, never before.
#pragma once

#include <optional>

#include "kvlease/base/time.h"
#include "kvlease/engine/model_runner.h"
#include "kvlease/synthetic/synthetic_model.h"

namespace kvlease {

class SyntheticRunner final : public ModelRunner {
 public:
  // Requires: `model` outlives this.
  explicit SyntheticRunner(SyntheticModel& model) : model_(model) {}

  void launch(Batch batch, Instant now) override;
  std::optional<ModelOutput> poll(Instant now) override;
  Instant next_deadline() const override { return done_at_; }

 private:
  SyntheticModel& model_;
  Batch batch_;
  Instant done_at_ = kNever;  // kNever: nothing in flight
};

}  // namespace kvlease
