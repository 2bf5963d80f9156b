// Replays the fuzzers' committed corpora as ordinary tests.
#include <gtest/gtest.h>

#include "kvlease/base/corpus_testing.h"
#include "kvlease/route/fuzz_testing.h"

namespace kvlease {
namespace {

TEST(Corpus, ClientBodies) {
  replay_corpus("kvlease/route/corpus/client_body_fuzz", check_client_body);
}

TEST(Corpus, Answers) { replay_corpus("kvlease/route/corpus/prefill_answer_fuzz", check_answer); }

}  // namespace
}  // namespace kvlease
