// Tests the estimate of how long leases have to be, and what holds of it whatever is observed.
#include "kvlease/core/adaptive_lease.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

constexpr AdaptiveLeaseOptions kOptions{.duration_min = std::chrono::seconds{6},
                                        .duration_max = std::chrono::seconds{30}};
constexpr Duration kWindow = kOptions.duration_max * AdaptiveLease::kWindowDurations;

// An estimate that is asked for once a second, as an engine that turns does, and its clock.
class Estimate {
 public:
  explicit Estimate(const AdaptiveLeaseOptions& options = kOptions) : lease_(options) {}

  void observe(Duration needed, int times = 1) {
    for (int i = 0; i < times; ++i) lease_.observe({.needed = needed}, now_);
  }
  void observe_late(Duration needed) { lease_.observe({.needed = needed, .late = true}, now_); }
  void expire(Duration duration) { lease_.on_expired(duration, now_); }
  Duration present() { return lease_.duration(now_); }
  // Time passes with waits of this length, one a second.
  Duration pass(Duration length, Duration needed) {
    for (const Instant end = now_ + length; now_ < end;) {
      now_ += secs(1);
      observe(needed);
      lease_.duration(now_);
    }
    return present();
  }
  void pause(Duration length) { now_ += length; }
  Instant now() const { return now_; }
  AdaptiveLease& lease() { return lease_; }

 private:
  AdaptiveLease lease_;
  Instant now_ = at(1000);
};

TEST(AdaptiveLeaseTest, WithoutEnoughSamplesItIsAsConfigured) {
  Estimate estimate;
  EXPECT_EQ(estimate.lease().present(), secs(30));
  EXPECT_EQ(estimate.pass(secs(63), secs(0.01)), secs(30));
  EXPECT_EQ(estimate.lease().samples(), 63u);
  EXPECT_LT(estimate.pass(secs(2), secs(0.01)), secs(30));
}

TEST(AdaptiveLeaseTest, EnoughSamplesIsMeantForEachRank) {
  Estimate estimate({.duration_min = secs(6), .duration_max = secs(30), .ranks = 4});
  EXPECT_EQ(estimate.pass(secs(255), secs(0.01)), secs(30));
  EXPECT_LT(estimate.pass(secs(2), secs(0.01)), secs(30));
}

TEST(AdaptiveLeaseTest, ShrinksByAnEighthOfTheTimeAndNotBelowTheMinimum) {
  Estimate estimate;
  estimate.observe(secs(0.01), 64);
  estimate.present();
  const Duration before = estimate.lease().present();
  EXPECT_EQ(estimate.pass(secs(80), secs(0.01)), before - secs(10));
  EXPECT_EQ(estimate.pass(secs(200), secs(0.01)), secs(6));
}

TEST(AdaptiveLeaseTest, IsTwiceTheLongestWait) {
  Estimate estimate;
  estimate.pass(secs(400), secs(5));
  EXPECT_GE(estimate.present(), secs(10));
  EXPECT_LE(estimate.present(), secs(10) * 9 / 8);
}

TEST(AdaptiveLeaseTest, GrowsAtOnce) {
  Estimate estimate;
  EXPECT_EQ(estimate.pass(secs(400), secs(0.01)), secs(6));
  estimate.observe(secs(8));
  EXPECT_GE(estimate.present(), secs(16));
  estimate.observe(secs(1000));
  EXPECT_EQ(estimate.present(), secs(30)) << "never longer than configured";
}

TEST(AdaptiveLeaseTest, ForgetsWhatHasLeftTheWindow) {
  Estimate estimate;
  estimate.pass(secs(300), secs(8));
  const Duration with_it = estimate.pass(kWindow - secs(90), secs(0.01));
  EXPECT_GE(with_it, secs(16));
  EXPECT_EQ(estimate.pass(kWindow, secs(0.01)), secs(6));
}

// One wait in more than a thousand does not count, unless it is proven that its lease was too
// short.
TEST(AdaptiveLeaseTest, ARareWaitCountsOnlyWhenItBrokeALease) {
  Estimate estimate;
  estimate.pass(secs(400), secs(0.01));
  estimate.observe(secs(0.01), 2000);
  estimate.observe(secs(9));
  EXPECT_EQ(estimate.present(), secs(6));
  estimate.observe_late(secs(9));
  EXPECT_EQ(estimate.present(), secs(18));
}

TEST(AdaptiveLeaseTest, AnExpiredLeaseCountsAsTooShortUntilTheTruthIsKnown) {
  Estimate estimate;
  estimate.pass(secs(400), secs(0.01));
  estimate.expire(secs(6));
  EXPECT_EQ(estimate.present(), secs(12));
  estimate.expire(secs(12));
  EXPECT_EQ(estimate.present(), secs(24));
  estimate.expire(secs(6));
  EXPECT_EQ(estimate.present(), secs(24)) << "what was granted before proves nothing new";
  estimate.expire(secs(24));
  EXPECT_EQ(estimate.present(), secs(30));
  // No sign has come in all the time that the configured duration would have given: it was dead.
  EXPECT_EQ(estimate.pass(secs(29), secs(0.01)), secs(30));
  EXPECT_EQ(estimate.pass(secs(8), secs(0.01)), secs(29));
}

TEST(AdaptiveLeaseTest, AForeignReaderKeepsTheConfiguredDuration) {
  Estimate estimate;
  estimate.pass(secs(400), secs(0.01));
  estimate.lease().on_foreign_reader(estimate.now());
  EXPECT_EQ(estimate.present(), secs(30));
  EXPECT_EQ(estimate.pass(kWindow - secs(90), secs(0.01)), secs(30));
  EXPECT_LT(estimate.pass(secs(100), secs(0.01)), secs(30));
}

TEST(AdaptiveLeaseTest, APauseIsNoEvidence) {
  Estimate estimate;
  estimate.observe(secs(0.01), 100);
  estimate.present();
  estimate.pause(secs(200));
  EXPECT_GE(estimate.present(), secs(30) - secs(30) / 4);
  estimate.pause(2 * kWindow);
  EXPECT_EQ(estimate.present(), secs(30)) << "what was known is too old";
  EXPECT_EQ(estimate.lease().samples(), 0u);
}

TEST(AdaptiveLeaseTest, TheEdgesOfItsRange) {
  Estimate fixed({.duration_min = secs(30), .duration_max = secs(30)});
  EXPECT_EQ(fixed.pass(secs(400), secs(0)), secs(30));
  Estimate shortest({.duration_min = secs(0.05), .duration_max = secs(0.05)});
  EXPECT_EQ(shortest.pass(secs(400), secs(0.01)), secs(0.05));
  Estimate longest({.duration_min = secs(0.05), .duration_max = AdaptiveLease::kDurationMax});
  longest.observe(kForever, 100);
  EXPECT_EQ(longest.present(), AdaptiveLease::kDurationMax);
  Estimate fine({.duration_min = secs(0.05), .duration_max = secs(0.3)});
  fine.observe(secs(0.0501), 100);
  for (int i = 0; i < 10; ++i) {
    fine.pause(secs(0.2));
    fine.present();
  }
  EXPECT_EQ(fine.present(), secs(0.102)) << "milliseconds, rounded up";
}

TEST(AdaptiveLeaseDeathTest, RejectsARangeThatWasNotChecked) {
  EXPECT_DEATH(AdaptiveLease({.duration_min = secs(31), .duration_max = secs(30)}), "was checked");
  EXPECT_DEATH(AdaptiveLease({.duration_min = secs(0), .duration_max = secs(30)}), "was checked");
  EXPECT_DEATH(AdaptiveLease({.duration_min = secs(1), .duration_max = kForever}), "was checked");
}

// --- properties

// One random step: time passes, then something is observed.
struct Step {
  std::uint64_t drawn;
  Duration pause() const { return std::chrono::milliseconds{drawn % 4000}; }
  Duration wait() const { return std::chrono::milliseconds{drawn / 4096 % (1u << (drawn % 16))}; }
  std::uint64_t kind() const { return drawn >> 32 & 15; }
};

void apply(const Step& step, AdaptiveLease& lease, Instant now) {
  switch (step.kind()) {
    case 0:
      return lease.on_expired(lease.present(), now);
    case 1:
      return lease.observe({.needed = step.wait(), .late = true}, now);
    default:
      return lease.observe({.needed = step.wait()}, now);
  }
}

// In its range, and never faster down than an eighth of the time; the same calls, the same answers.
RC_GTEST_PROP(AdaptiveLeaseProperty, StaysInRangeFallsSlowlyAndRepeats,
              (const std::vector<std::uint64_t>& drawn)) {
  AdaptiveLease lease(kOptions);
  AdaptiveLease again(kOptions);
  Instant now = at(1);
  Duration last = lease.duration(now);
  again.duration(now);
  for (const std::uint64_t number : drawn) {
    const Step step{mix64(number)};
    now += step.pause();
    apply(step, lease, now);
    apply(step, again, now);
    const Duration present = lease.duration(now);
    RC_ASSERT(present >= kOptions.duration_min);
    RC_ASSERT(present <= kOptions.duration_max);
    RC_ASSERT(present >= last - step.pause() / AdaptiveLease::kShrinkOneIn);
    RC_ASSERT(again.duration(now) == present);
    last = present;
  }
}

// What is in the window is covered with its margin: all but 1 in 1000, and every proven one; so is
// twice an expired lease until its time is over. Compared with a plain list of samples.
RC_GTEST_PROP(AdaptiveLeaseProperty, CoversWhatAPlainListSays,
              (const std::vector<std::uint64_t>& drawn)) {
  struct Sample {
    Instant at;
    Duration needed;
    bool late;
  };
  AdaptiveLease lease(kOptions);
  std::vector<Sample> samples;
  Instant floor_until = kTimeZero;
  Duration floor{};
  Instant now = at(1);
  for (std::size_t i = 0; i < 4 * drawn.size(); ++i) {
    const Step step{mix64(drawn[i / 4] + i)};
    now += step.pause();
    if (step.kind() == 0) {
      floor = std::max(now < floor_until ? floor : Duration::zero(), 2 * lease.present());
      floor_until = now + kOptions.duration_max;
    } else {
      samples.push_back({now, step.wait(), step.kind() == 1});
    }
    apply(step, lease, now);
    const Duration present = lease.duration(now);
    // The window's oldest slice goes as a whole.
    std::vector<Duration> needed;
    Duration late{};
    for (const Sample& sample : samples) {
      if (sample.at <= now - kWindow + kWindow / 8) continue;
      needed.push_back(sample.needed);
      if (sample.late) late = std::max(late, sample.needed);
    }
    std::ranges::sort(needed, std::greater<>());
    const Duration quantile = needed.empty() ? Duration::zero() : needed[needed.size() / 1000];
    RC_ASSERT(present >= std::min(kOptions.duration_max, std::max(quantile, late) * 2));
    if (now < floor_until) RC_ASSERT(present >= std::min(kOptions.duration_max, floor));
  }
}

// A lease that is too short does not confirm itself. Readers need anything up to the configured
// duration; their leases expire before, and the estimate hears of it late or never.
RC_GTEST_PROP(AdaptiveLeaseProperty, TooShortLeasesGrowUntilTheyAreKept, (std::uint16_t drawn)) {
  const Duration needed = secs(6) + std::chrono::milliseconds{drawn % 23'900};
  const bool heard_of = drawn % 2 == 0;
  AdaptiveLease lease(kOptions);
  Instant now = at(1);
  for (int i = 0; i < 1000; ++i) {  // all was well so far
    now += secs(1);
    lease.observe({.needed = secs(0.01)}, now);
    lease.duration(now);
  }
  RC_ASSERT(lease.present() == secs(6));
  int expired = 0;
  for (Duration granted{}; granted <= needed;) {
    granted = lease.duration(now);
    now += std::min(granted, needed);
    if (granted > needed) break;
    ++expired;
    lease.on_expired(granted, now);
    if (heard_of) lease.observe({.needed = needed, .late = true}, now += needed - granted);
  }
  RC_ASSERT(expired <= (heard_of ? 1 : 3));
}

}  // namespace
}  // namespace kvlease
