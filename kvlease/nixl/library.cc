// Candidates in order, dlopen by absolute path, every symbol probed.
#include "kvlease/nixl/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvlease::nixl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "libnixl_capi.so";
constexpr const char* kInstall =
    "install it with `./dev deps`, or with `pip download --no-deps nixl-cu12==1.5.1` and unzip the "
    "wheel; --nixl-path or KVLEASE_NIXL_PATH names another place";
// Came with the statuses -1 and -6, which the agent's errors rely on; never called.
constexpr const char* kStatusMarker = "nixl_capi_prep_mem_view_local";

std::vector<fs::path> children(const fs::path& directory, std::string_view prefix,
                               std::string_view suffix) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (fs::directory_iterator it(directory, failure), end; !failure && it != end;
       it.increment(failure)) {
    const std::string name = it->path().filename();
    if (name.starts_with(prefix) && name.ends_with(suffix)) found.push_back(it->path());
  }
  std::ranges::sort(found);
  return found;
}

// What a directory offers: the library itself, or that of an unzipped or installed wheel.
std::vector<fs::path> libraries_in(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code ignored;
  if (fs::exists(directory / kFileName, ignored)) found.push_back(directory / kFileName);
  for (const fs::path& wheel : children(directory, ".nixl_cu", ".mesonpy.libs")) {
    if (fs::exists(wheel / kFileName, ignored)) found.push_back(wheel / kFileName);
  }
  return found;
}

std::vector<fs::path> python_package_directories() {
  std::vector<fs::path> roots;
  if (const char* venv = std::getenv("VIRTUAL_ENV")) roots.push_back(fs::path(venv) / "lib");
  if (const char* home = std::getenv("HOME")) roots.push_back(fs::path(home) / ".local/lib");
  roots.insert(roots.end(), {"/usr/local/lib", "/usr/lib"});
  std::vector<fs::path> found;
  for (const fs::path& root : roots) {
    for (const fs::path& python : children(root, "python3", "")) {
      found.insert(found.end(), {python / "site-packages", python / "dist-packages"});
    }
  }
  return found;
}

// The symbol that is missing, or null when `functions` is complete.
const char* fill(void* handle, capi::Functions& functions) {
#define KVL_NIXL_LOAD(name, parameters)                                                           \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(handle, "nixl_capi_" #name)); \
  if (functions.name == nullptr) return "nixl_capi_" #name;
  KVL_NIXL_FUNCTIONS(KVL_NIXL_LOAD)
#undef KVL_NIXL_LOAD
  return dlsym(handle, kStatusMarker) == nullptr ? kStatusMarker : nullptr;
}

Result<Library> load_file(const fs::path& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    // A build that was installed without a run path does not find its siblings by itself; the
    // loader takes what is mapped already. Not done first: the wheel then ignores NIXL_LOG_LEVEL,
    // for its parts each find their own copy of the logging library.
    const std::string reason = dlerror();
    for (const char* sibling :
         {"libserdes.so", "libnixl_common.so", "libstream.so", "libnixl_build.so", "libnixl.so"}) {
      dlopen((file.parent_path() / sibling).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return error(ErrorCode::kUnavailable, reason);
  }
  if (handle == nullptr) return error(ErrorCode::kUnavailable, dlerror());
  const auto is_stub = reinterpret_cast<bool (*)()>(dlsym(handle, "nixl_capi_is_stub"));
  if (is_stub != nullptr && is_stub()) {
    return error(ErrorCode::kUnavailable, file.string() + ": is a stub without NIXL behind it");
  }
  Library library{.path = file, .functions = {}};
  if (const char* missing = fill(handle, library.functions)) {
    return error(ErrorCode::kUnavailable, file.string() + ": too old: has no " + missing);
  }
  return library;
}

// The one place that the user named, if any.
std::optional<fs::path> named_place(const LibraryOptions& options) {
  if (!options.explicit_path.empty()) return options.explicit_path;
  const char* environment = std::getenv("KVLEASE_NIXL_PATH");
  if (environment != nullptr && *environment != '\0') return environment;
  return std::nullopt;
}

}  // namespace

Result<Library> load_library(const LibraryOptions& options) {
  setenv("UCX_MEM_EVENTS", "n", 0);
  std::vector<fs::path> places;
  if (const std::optional<fs::path> named = named_place(options)) {
    std::error_code ignored;
    places.push_back(fs::absolute(*named, ignored));
  } else {
    places = python_package_directories();
    places.insert(places.begin(), KVL_NIXL_DEPS_DIR);
  }

  std::string tried;
  for (const fs::path& place : places) {
    std::error_code ignored;
    const std::vector<fs::path> files =
        fs::is_regular_file(place, ignored) ? std::vector{place} : libraries_in(place);
    if (files.empty()) tried += "\n  " + place.string() + ": holds no " + kFileName;
    for (const fs::path& file : files) {
      Result<Library> library = load_file(file);
      if (library) return library;
      tried += "\n  " + library.error().message;
    }
  }
  return error(ErrorCode::kUnavailable,
               std::string("NIXL cannot be loaded; ") + kInstall + "; tried:" + tried);
}

}  // namespace kvlease::nixl
