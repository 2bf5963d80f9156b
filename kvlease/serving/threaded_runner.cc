// Implements threaded_runner.h.
#include "kvlease/serving/threaded_runner.h"

#include <chrono>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {

ThreadedRunner::ThreadedRunner(Model model)
    : model_(std::move(model)), thread_([this] { run(); }) {}

ThreadedRunner::~ThreadedRunner() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadedRunner::launch(Batch batch, Instant) {
  const Duration cost = model_.cost(batch);
  {
    const std::scoped_lock lock(mutex_);
    KVL_CHECK(!batch_ && !output_, "one forward in flight");
    batch_ = std::move(batch);
    cost_ = cost;
  }
  changed_.notify_all();
}

std::optional<ModelOutput> ThreadedRunner::poll(Instant) {
  const std::scoped_lock lock(mutex_);
  return std::exchange(output_, std::nullopt);
}

void ThreadedRunner::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || batch_; });
    if (stopping_) return;
    const auto end = std::chrono::steady_clock::now() + cost_;
    lock.unlock();
    ModelOutput output =
        model_.compute(*batch_);  // launch() leaves batch_ alone until output_ is set
    lock.lock();
    changed_.wait_until(lock, end, [this] { return stopping_; });  // the modelled time
    batch_.reset();
    output_ = std::move(output);
    lock.unlock();
    model_.wake();
    lock.lock();
  }
}

}  // namespace kvlease
