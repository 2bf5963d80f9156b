// Our own declarations of the part of NIXL's C library (libnixl_capi.so) that the adapter calls, as
// one table of functions that is filled at run time. Names and argument orders are the library's:
// mind that prep_xfer_dlist takes the result before `opt`, and that every `opt` may be null.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlease::nixl::capi {

enum class Status : int {
  kSuccess = 0,
  kInProgress = 1,
  kInvalidParam = -1,
  kBackend = -2,  // also stands for a dead peer: the C library merges them
  kInvalidState = -3,
  kException = -4,
  kNoTelemetry = -5,
  kNotFound = -6,
};

enum class MemType : int { kDram = 0, kVram = 1 };
enum class XferOp : int { kRead = 0, kWrite = 1 };
enum class ThreadSync : int { kNone = 0, kStrict = 1, kReadWrite = 2 };

struct AgentConfig {
  bool enable_prog_thread;
  bool enable_listen_thread;
  std::int32_t listen_port;
  ThreadSync thread_sync;
  std::uint32_t num_workers;  // ignored by the library: it is a parameter of the backend
  std::uint64_t pthr_delay_us;
  std::uint64_t lthr_delay_us;
  bool capture_telemetry;
};
static_assert(sizeof(AgentConfig) == 40 && offsetof(AgentConfig, pthr_delay_us) == 16);

// Opaque objects, each given back by the function that is named after it.
struct Agent;
struct Backend;
struct DlistHandle;
struct NotifMap;
struct OptArgs;
struct Params;
struct RegDlist;
struct XferDlist;
struct XferReq;

// X(name without nixl_capi_, parameters); all return a Status.
// clang-format off: it takes the stars for products.
#define KVL_NIXL_FUNCTIONS(X) \
  X(create_configured_agent, (const char* name, const AgentConfig* config, Agent** out)) \
  X(destroy_agent, (Agent* agent)) \
  X(create_params, (Params** out)) \
  X(params_add, (Params* params, const char* key, const char* value)) \
  X(destroy_params, (Params* params)) \
  X(create_backend, (Agent* agent, const char* plugin, Params* params, Backend** out)) \
  X(destroy_backend, (Backend* backend)) \
  X(create_opt_args, (OptArgs** out)) \
  X(opt_args_add_backend, (OptArgs* args, Backend* backend)) \
  X(destroy_opt_args, (OptArgs* args)) \
  X(create_reg_dlist, (MemType type, RegDlist** out)) \
  X(reg_dlist_add_desc, (RegDlist* list, std::uintptr_t address, std::size_t length, \
                         std::uint64_t device, const void* meta, std::size_t meta_length)) \
  X(destroy_reg_dlist, (RegDlist* list)) \
  X(register_mem, (Agent* agent, RegDlist* list, OptArgs* opt)) \
  X(get_local_md, (Agent* agent, void** data_to_free, std::size_t* length)) \
  X(load_remote_md, (Agent* agent, const void* data, std::size_t length, char** name_to_free)) \
  X(invalidate_remote_md, (Agent* agent, const char* name)) \
  X(create_xfer_dlist, (MemType type, XferDlist** out)) \
  X(xfer_dlist_add_desc, (XferDlist* list, std::uintptr_t address, std::size_t length, \
                          std::uint64_t device)) \
  X(destroy_xfer_dlist, (XferDlist* list)) \
  X(prep_xfer_dlist, (Agent* agent, const char* owner, XferDlist* list, DlistHandle** out, \
                      OptArgs* opt)) \
  X(release_xfer_dlist_handle, (Agent* agent, DlistHandle* handle)) \
  X(make_xfer_req, (Agent* agent, XferOp op, DlistHandle* local, const int* local_indices, \
                    std::size_t local_count, DlistHandle* remote, const int* remote_indices, \
                    std::size_t remote_count, XferReq** out, OptArgs* opt)) \
  X(post_xfer_req, (Agent* agent, XferReq* request, OptArgs* opt)) \
  X(get_xfer_status, (Agent* agent, XferReq* request)) \
  X(release_xfer_req, (Agent* agent, XferReq* request)) \
  X(destroy_xfer_req, (XferReq* request)) \
  X(gen_notif, (Agent* agent, const char* peer, const void* data, std::size_t length, \
                OptArgs* opt)) \
  X(create_notif_map, (NotifMap** out)) \
  X(get_notifs, (Agent* agent, NotifMap* map, OptArgs* opt)) \
  X(notif_map_size, (NotifMap* map, std::size_t* agents)) \
  X(notif_map_get_agent_at, (NotifMap* map, std::size_t index, const char** name)) \
  X(notif_map_get_notifs_size, (NotifMap* map, const char* name, std::size_t* count)) \
  X(notif_map_get_notif, (NotifMap* map, const char* name, std::size_t index, const void** data, \
                          std::size_t* length)) \
  X(notif_map_clear, (NotifMap* map)) \
  X(destroy_notif_map, (NotifMap* map))
// clang-format on

struct Functions {
#define KVL_NIXL_MEMBER(name, parameters) \
  Status(*name) parameters = nullptr;  // NOLINT(bugprone-macro-parentheses)
  KVL_NIXL_FUNCTIONS(KVL_NIXL_MEMBER)
#undef KVL_NIXL_MEMBER
};

}  // namespace kvlease::nixl::capi
