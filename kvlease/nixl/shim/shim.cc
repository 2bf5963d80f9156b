// See shim.h. Built as a module of its own, and once more as a library that is too old
// (KVL_SHIM_TOO_OLD).
#include "kvlease/nixl/shim/shim.h"

#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace kvlease::nixl::capi {

struct Agent {};
struct Backend {};
struct DlistHandle {};
struct NotifMap {};
struct OptArgs {};
struct Params {};
struct RegDlist {};
struct XferDlist {};
struct XferReq {
  Status last = Status::kSuccess;
  bool released = false;
};

namespace {

ShimControl& control() {
  static ShimControl instance;
  return instance;
}

Status answer(const char* function, Status usual) {
  const auto script = control().answers.find(function);
  if (script == control().answers.end()) return usual;
  const Status next = script->second.front();
  if (script->second.size() > 1) script->second.pop_front();
  return next;
}

Status record(const char* function, Status usual) {
  control().calls.emplace_back(function);
  return answer(function, usual);
}

template <typename T>
Status make(const char* function, T** out) {
  const Status status = answer(function, Status::kSuccess);
  if (status != Status::kSuccess) return status;
  *out = new T;
  ++control().live[function];
  return status;
}

template <typename T>
Status destroy(const char* maker, T* object) {
  delete object;
  --control().live[maker];
  return Status::kSuccess;
}

}  // namespace

extern "C" {

ShimControl* kvlease_shim_control() { return &control(); }
bool nixl_capi_is_stub() { return control().is_stub; }
#ifndef KVL_SHIM_TOO_OLD
void nixl_capi_prep_mem_view_local() {}
#endif

Status nixl_capi_create_configured_agent(const char*, const AgentConfig*, Agent** out) {
  return make("create_configured_agent", out);
}
Status nixl_capi_destroy_agent(Agent* agent) {
  for (const char* maker : {"make_xfer_req", "prep_xfer_dlist"}) {
    if (control().live[maker] > 0) {
      control().violations.push_back(std::string("the agent ended before what is left of ") +
                                     maker);
    }
  }
  return destroy("create_configured_agent", agent);
}
Status nixl_capi_create_params(Params** out) { return make("create_params", out); }
Status nixl_capi_params_add(Params*, const char*, const char*) {
  return answer("params_add", Status::kSuccess);
}
Status nixl_capi_destroy_params(Params* params) { return destroy("create_params", params); }
Status nixl_capi_create_backend(Agent*, const char*, Params*, Backend** out) {
  return make("create_backend", out);
}
Status nixl_capi_destroy_backend(Backend* backend) { return destroy("create_backend", backend); }
Status nixl_capi_create_opt_args(OptArgs** out) { return make("create_opt_args", out); }
Status nixl_capi_opt_args_add_backend(OptArgs*, Backend*) {
  return answer("opt_args_add_backend", Status::kSuccess);
}
Status nixl_capi_destroy_opt_args(OptArgs* args) { return destroy("create_opt_args", args); }

Status nixl_capi_create_reg_dlist(MemType, RegDlist** out) { return make("create_reg_dlist", out); }
Status nixl_capi_reg_dlist_add_desc(RegDlist*, std::uintptr_t, std::size_t, std::uint64_t,
                                    const void*, std::size_t) {
  return answer("reg_dlist_add_desc", Status::kSuccess);
}
Status nixl_capi_destroy_reg_dlist(RegDlist* list) { return destroy("create_reg_dlist", list); }
Status nixl_capi_register_mem(Agent*, RegDlist*, OptArgs*) {
  return answer("register_mem", Status::kSuccess);
}

// A peer's metadata is its name here.
Status nixl_capi_get_local_md(Agent*, void** data, std::size_t* length) {
  const Status status = answer("get_local_md", Status::kSuccess);
  if (status == Status::kSuccess) {
    *data = strdup("self");
    *length = 4;
  }
  return status;
}
Status nixl_capi_load_remote_md(Agent*, const void* data, std::size_t length, char** name) {
  const Status status = record("load_remote_md", Status::kSuccess);
  if (status == Status::kSuccess) *name = strndup(static_cast<const char*>(data), length);
  return status;
}
Status nixl_capi_invalidate_remote_md(Agent*, const char*) {
  return record("invalidate_remote_md", Status::kSuccess);
}

Status nixl_capi_create_xfer_dlist(MemType, XferDlist** out) {
  return make("create_xfer_dlist", out);
}
Status nixl_capi_xfer_dlist_add_desc(XferDlist*, std::uintptr_t, std::size_t, std::uint64_t) {
  return answer("xfer_dlist_add_desc", Status::kSuccess);
}
Status nixl_capi_destroy_xfer_dlist(XferDlist* list) { return destroy("create_xfer_dlist", list); }
Status nixl_capi_prep_xfer_dlist(Agent*, const char*, XferDlist*, DlistHandle** out, OptArgs*) {
  return make("prep_xfer_dlist", out);
}
Status nixl_capi_release_xfer_dlist_handle(Agent*, DlistHandle* handle) {
  return destroy("prep_xfer_dlist", handle);
}

Status nixl_capi_make_xfer_req(Agent*, XferOp op, DlistHandle*, const int*, std::size_t,
                               DlistHandle*, const int*, std::size_t, XferReq** out, OptArgs*) {
  if (op != XferOp::kRead) control().violations.push_back("a transfer that is no read");
  return make("make_xfer_req", out);
}
Status nixl_capi_post_xfer_req(Agent*, XferReq* request, OptArgs* opt) {
  if (opt != nullptr) control().violations.push_back("posted with options");
  return request->last = record("post_xfer_req", Status::kInProgress);
}
Status nixl_capi_get_xfer_status(Agent*, XferReq* request) {
  return request->last = record("get_xfer_status", Status::kSuccess);
}
Status nixl_capi_release_xfer_req(Agent*, XferReq* request) {
  record(request->last == Status::kInProgress ? "release_unfinished" : "release_xfer_req",
         Status::kSuccess);
  request->released = true;
  return Status::kSuccess;
}
Status nixl_capi_destroy_xfer_req(XferReq* request) {
  if (!request->released) control().violations.push_back("a request destroyed before its release");
  return destroy("make_xfer_req", request);
}

Status nixl_capi_gen_notif(Agent*, const char*, const void*, std::size_t, OptArgs*) {
  return record("gen_notif", Status::kSuccess);
}
Status nixl_capi_create_notif_map(NotifMap** out) { return make("create_notif_map", out); }
// Its inbox is always empty.
Status nixl_capi_get_notifs(Agent*, NotifMap*, OptArgs*) {
  return answer("get_notifs", Status::kSuccess);
}
Status nixl_capi_notif_map_size(NotifMap*, std::size_t* agents) {
  *agents = 0;
  return Status::kSuccess;
}
Status nixl_capi_notif_map_get_agent_at(NotifMap*, std::size_t, const char**) { std::abort(); }
Status nixl_capi_notif_map_get_notifs_size(NotifMap*, const char*, std::size_t*) { std::abort(); }
Status nixl_capi_notif_map_get_notif(NotifMap*, const char*, std::size_t, const void**,
                                     std::size_t*) {
  std::abort();
}
Status nixl_capi_notif_map_clear(NotifMap*) { return Status::kSuccess; }
Status nixl_capi_destroy_notif_map(NotifMap* map) { return destroy("create_notif_map", map); }

}  // extern "C"

// The shim has every function of the table, with its type.
#define KVL_SHIM_MATCHES(name, parameters) \
  static_assert(std::is_same_v<decltype(&nixl_capi_##name), decltype(Functions::name)>);
KVL_NIXL_FUNCTIONS(KVL_SHIM_MATCHES)
#undef KVL_SHIM_MATCHES

}  // namespace kvlease::nixl::capi
