// Finding and refusing libraries. Nothing here needs NIXL.
#include "kvlease/nixl/library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "kvlease/nixl/shim/shim.h"

namespace kvlease::nixl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LoadLibrary : public testing::Test {
 protected:
  LoadLibrary() { std::filesystem::create_directories(directory_); }
  ~LoadLibrary() override {
    // Other tests of this process go by what the user set.
    if (named_by_user_) {
      setenv("KVLEASE_NIXL_PATH", named_by_user_->c_str(), 1);
    } else {
      unsetenv("KVLEASE_NIXL_PATH");
    }
    std::filesystem::remove_all(directory_);
  }

  static std::optional<std::string> environment() {
    const char* value = std::getenv("KVLEASE_NIXL_PATH");
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  const std::optional<std::string> named_by_user_ = environment();
  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) / ("kvlease_nixl_" + std::to_string(getpid()));
};

std::string failure(const std::string& path) {
  const Result<Library> library = load_library({.explicit_path = path});
  if (library) return "loaded " + library->path;
  EXPECT_EQ(library.error().code, ErrorCode::kUnavailable);
  return library.error().message;
}

TEST_F(LoadLibrary, NamesWhatWasTriedAndHowToInstall) {
  EXPECT_THAT(failure("/nowhere/at/all"),
              AllOf(HasSubstr("/nowhere/at/all: holds no libnixl_capi.so"), HasSubstr("./dev deps"),
                    HasSubstr("pip download --no-deps nixl-cu12==1.5.1"), HasSubstr("--nixl-path"),
                    HasSubstr("KVLEASE_NIXL_PATH")));
}

TEST_F(LoadLibrary, RefusesWhatIsNoLibrary) {
  std::ofstream(directory_ / "libnixl_capi.so") << "not an ELF file";
  EXPECT_THAT(failure(directory_), HasSubstr("libnixl_capi.so"));
}

TEST_F(LoadLibrary, RefusesAStub) {
  void* handle = dlopen(KVL_NIXL_SHIM, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  const auto control =
      reinterpret_cast<ShimControlFunction>(dlsym(handle, "kvlease_shim_control"))();
  control->is_stub = true;
  EXPECT_THAT(failure(KVL_NIXL_SHIM), HasSubstr("stub"));
  control->is_stub = false;
  EXPECT_TRUE(load_library({.explicit_path = KVL_NIXL_SHIM}));
}

TEST_F(LoadLibrary, RefusesATooOldLibraryByTheMissingName) {
  EXPECT_THAT(failure(KVL_NIXL_SHIM_TOO_OLD), HasSubstr("has no nixl_capi_prep_mem_view_local"));
}

TEST_F(LoadLibrary, FindsItInADirectoryAndInAWheel) {
  const auto wheel = directory_ / ".nixl_cu13.mesonpy.libs";
  std::filesystem::create_directories(wheel);
  std::filesystem::copy_file(KVL_NIXL_SHIM, wheel / "libnixl_capi.so");
  for (const std::filesystem::path& place : {directory_, wheel, wheel / "libnixl_capi.so"}) {
    const Result<Library> library = load_library({.explicit_path = place});
    ASSERT_TRUE(library) << library.error().message;
    EXPECT_EQ(library->path, wheel / "libnixl_capi.so");
  }
}

TEST_F(LoadLibrary, TheOptionWinsOverTheEnvironment) {
  setenv("KVLEASE_NIXL_PATH", "/named/by/environment", 1);
  EXPECT_THAT(failure(""), HasSubstr("/named/by/environment"));
  EXPECT_TRUE(load_library({.explicit_path = KVL_NIXL_SHIM}));
}

}  // namespace
}  // namespace kvlease::nixl
