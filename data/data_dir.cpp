#include "data/data_dir.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "data/data_error.h"
#include "gpipe/error.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe::data {
namespace {

using detail::nearest_name;

struct DataSet {
  const char* name;
  const char* package_dir;   // where its Debian package installs it; nullptr if none does
  const char* package_file;  // what shows that it has
  const char* arguments;     // of gpipe get-data
};
constexpr DataSet kDataSets[] = {
    {"fashion-mnist", "/usr/share/datasets/fashion-mnist", "train-images-idx3-ubyte.gz", "fashion-mnist"},
    {"cifar10", nullptr, nullptr, "cifar10"},
    {"libreoffice-help", "/usr/share/libreoffice/help", "en-US/text", "libreoffice-help de"},
    {"kjv", nullptr, nullptr, "kjv"},
    {"gcide", "/usr/share/dictd", "gcide.dict.dz", "gcide"},
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const DataSet& data_set(const std::string& name) {
  std::vector<std::string> names;
  for (const DataSet& set : kDataSets) {
    if (name == set.name) return set;
    names.emplace_back(set.name);
  }
  const std::string nearest = nearest_name(name, names);
  throw InvalidArgument(fmt::format("no data set '{}'{}; there are {}", name,
                                    nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
                                    fmt::join(names, ", ")));
}

// Whether there is something; the type `none` means that nobody can say.
std::filesystem::file_status status_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() != std::filesystem::file_type::none) return status;
  throw DataError(path.string(), "cannot read it: " + error.message(),
                  "check its permissions and those of its folders");
}

}  // namespace

std::string data_dir() {
  if (const std::string dir = variable("GPIPE_DATA_DIR"); !dir.empty()) return dir;
  if (const std::string dir = variable("XDG_DATA_HOME"); !dir.empty()) return dir + "/gpipe";
  if (const std::string dir = variable("HOME"); !dir.empty()) return dir + "/.local/share/gpipe";
  throw DataError("data folder", "neither GPIPE_DATA_DIR nor HOME is set", "set GPIPE_DATA_DIR to a folder");
}

std::string find_data_set(const std::string& name) {
  const DataSet& set = data_set(name);
  const std::string own = (std::filesystem::path(data_dir()) / name).string();
  if (std::filesystem::is_directory(status_of(own))) return own;
  std::string places = own;
  if (set.package_dir != nullptr) {
    const std::filesystem::path package_dir = set.package_dir;
    if (std::filesystem::exists(status_of(package_dir / set.package_file))) return package_dir.string();
    places += " or " + package_dir.string();
  }
  throw DataError::missing(name, "not found in " + places, fmt::format("run gpipe get-data {}", set.arguments));
}

std::string file_in(const std::string& dir, const std::string& name, const std::string& remedy) {
  const std::filesystem::path path = std::filesystem::path(dir) / name;
  if (std::filesystem::exists(status_of(path))) return path.string();
  throw DataError::missing(dir, fmt::format("no file {} in it", name), remedy);
}

}  // namespace gpipe::data
