// Replays the fuzzers' committed corpora as ordinary tests.
#include <gtest/gtest.h>

#include "kvlease/base/corpus_testing.h"
#include "kvlease/serving/fuzz_testing.h"

namespace kvlease {
namespace {

TEST(Corpus, CompletionRequests) {
  replay_corpus("kvlease/serving/corpus/completions_fuzz", check_completion_request);
}

}  // namespace
}  // namespace kvlease
