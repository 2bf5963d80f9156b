// Runs a model's forward on one thread of its own, so that the loop goes on renewing and answering
// while it computes. The thread owns nothing but the batch that it was handed.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "kvlease/base/time.h"
#include "kvlease/engine/model_runner.h"

namespace kvlease {

class ThreadedRunner final : public ModelRunner {
 public:
  struct Model {
    // Computes one forward. Threads: called on the runner's thread, one call at a time.
    std::move_only_function<ModelOutput(const Batch&)> compute;
    // How long the forward is to take at least; 0: as long as it takes. Called on the loop thread.
    std::move_only_function<Duration(const Batch&)> cost;
    // Called on the runner's thread when an output is ready: wakes the loop.
    std::move_only_function<void()> wake;
  };
  explicit ThreadedRunner(Model model);
  ThreadedRunner(const ThreadedRunner&) = delete;
  ThreadedRunner& operator=(const ThreadedRunner&) = delete;
  // Waits for a forward in flight.
  ~ThreadedRunner() override;

  void launch(Batch batch, Instant now) override;
  std::optional<ModelOutput> poll(Instant now) override;
  Instant next_deadline() const override { return kNever; }

 private:
  void run();

  Model model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Batch> batch_;  // guarded by mutex_, as all below
  Duration cost_{};
  std::optional<ModelOutput> output_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvlease
