#include "train/checkpoint_dir.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/files.h"
#include "gpipe/gpipe.h"

namespace gpipe::train {
namespace {

namespace fs = std::filesystem;

// "step-0000000100", "step-0000000100.1"
bool is_checkpoint_name(const std::string& name) {
  const std::string prefix = "step-";
  return name.compare(0, prefix.size(), prefix) == 0 && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789.", prefix.size()) == std::string::npos;
}

}  // namespace

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_checkpoint_name(name) && entry->is_directory(error)) names.push_back(name);
  }
  const std::string latest = latest_name(folder);
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    if ((a == latest) != (b == latest)) return a == latest;
    return a.size() != b.size() && a.compare(0, 15, b, 0, 15) == 0 ? a.size() > b.size() : a > b;
  });
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(folder + "/" + name);
  return paths;
}

void check_checkpoint_dir(const std::string& folder) {
  std::vector<fs::path> made;  // the folders that were not there, the innermost first
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  for (; fs::symlink_status(path, error).type() == fs::file_type::not_found; path = path.parent_path()) {
    made.push_back(path);
  }
  fs::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  std::error_code ignored;
  for (const fs::path& missing : made) fs::remove(missing, ignored);
  if (!error) return;
  throw cli::UsageError(fmt::format("--checkpoint-dir '{}': {}", folder, error.message()),
                        "name a folder that can be written to");
}

int remove_checkpoints(const std::string& folder) {
  const std::vector<std::string> paths = checkpoints_in(folder);
  std::error_code error;
  fs::remove(folder + "/" + kLatest, error);
  for (const std::string& path : paths) {
    fs::remove_all(path, error);
    if (error) throw CheckpointError(path, fmt::format(" cannot be removed: {}", error.message()));
  }
  return static_cast<int>(paths.size());
}

bool warn_of_damaged(const std::string& folder) {
  if (!cli::is_folder(folder) || cli::is_there(folder + "/" + kManifestName)) return false;
  const std::string used = latest_checkpoint(folder);
  std::string notes;
  for (const std::string& path : checkpoints_in(folder)) {
    if (fs::path(path).filename() == fs::path(used).filename()) break;
    try {
      read_manifest(path);
    } catch (const CheckpointError& error) {
      notes += fmt::format("note: {}\n", error.what());
    }
  }
  std::fputs(notes.c_str(), stderr);
  return !notes.empty();
}

}  // namespace gpipe::train
