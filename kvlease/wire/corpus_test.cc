// Replays the fuzzers' committed corpora as ordinary tests.
#include <gtest/gtest.h>

#include "kvlease/base/corpus_testing.h"
#include "kvlease/wire/fuzz_testing.h"

namespace kvlease {
namespace {

TEST(Corpus, Notifications) {  // L44
  replay_corpus("kvlease/wire/corpus/notification_fuzz",
                [](std::string_view input) { check_notification(as_byte_span(input)); });
}

TEST(Corpus, KvTransferParams) {
  replay_corpus("kvlease/wire/corpus/kv_transfer_params_fuzz", check_kv_transfer_params);
}

TEST(Corpus, KvTransferConfigs) {
  replay_corpus("kvlease/wire/corpus/kv_transfer_config_fuzz", check_kv_transfer_config);
}

TEST(Corpus, Handshakes) { replay_corpus("kvlease/wire/corpus/handshake_fuzz", check_handshake); }

}  // namespace
}  // namespace kvlease
