// Replays the fuzzers' committed corpora as ordinary tests.
#include <gtest/gtest.h>

#include "kvlease/base/corpus_testing.h"
#include "kvlease/runtime/fuzz_testing.h"

namespace kvlease {
namespace {

TEST(Corpus, RequestBytes) {
  replay_corpus("kvlease/runtime/corpus/http_server_fuzz", check_http_server);
}

TEST(Corpus, AnswerBytes) {
  replay_corpus("kvlease/runtime/corpus/http_client_fuzz", check_http_client);
}

}  // namespace
}  // namespace kvlease
