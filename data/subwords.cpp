#include "data/subwords.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "data/data_error.h"

namespace gpipe::data {
namespace {

constexpr const char* kFile = "libgpipe_subwords.so";

std::vector<std::string> places() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program / kFile, program / ".." / "lib" / "gpipe" / kFile, kFile};
}

// The address sanitizer cannot live with libraries that prefer their own symbols; its tests link no libtorch.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

const SubwordLibrary& load_library() {
  std::string problem;
  for (const std::string& place : places()) {
    void* library = dlopen(place.c_str(), kFlags);
    if (library == nullptr) {
      const std::string why = dlerror();
      if (problem.empty() || std::filesystem::exists(place)) problem = why;
      continue;
    }
    const auto entry = reinterpret_cast<const SubwordLibrary& (*)()>(dlsym(library, "gpipe_subword_library"));
    if (entry != nullptr) return entry();
    problem = fmt::format("{} is of another version", place);
  }
  throw DataError(kFile, fmt::format("cannot be loaded: {}", problem),
                  "keep it next to the program, or install gpipe again");
}

}  // namespace

const SubwordLibrary& subword_library() {
  static const SubwordLibrary& library = load_library();
  return library;
}

}  // namespace gpipe::data
