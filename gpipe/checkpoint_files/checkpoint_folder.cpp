#include "gpipe/checkpoint_files/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <tuple>

#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"

namespace gpipe {
namespace {

using detail::directory_of;
using detail::is_folder;
using detail::is_there;
using detail::OutputFile;
using detail::put_in_place;
using detail::read_small_file;
using detail::replace_file;
using detail::sync_directory;
using detail::throw_file_error;

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::size_t kMaxName = 64;

// step-0000000100, step-0000000100.1
struct Name {
  std::int64_t step = 0;
  std::int64_t repetition = 0;
};

bool operator<(const Name& a, const Name& b) { return std::tie(a.step, a.repetition) < std::tie(b.step, b.repetition); }

std::string to_text(const Name& name) {
  return name.repetition == 0 ? fmt::format("{}{:010}", kPrefix, name.step)
                              : fmt::format("{}{:010}.{}", kPrefix, name.step, name.repetition);
}

std::optional<Name> parse_name(std::string_view text) {
  if (text.size() > kMaxName || text.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  Name name;
  const char* const end = text.data() + text.size();
  const auto step = std::from_chars(text.data() + kPrefix.size(), end, name.step);
  if (step.ec != std::errc() || name.step < 0) return std::nullopt;
  if (step.ptr != end) {
    if (*step.ptr != '.') return std::nullopt;
    const auto repetition = std::from_chars(step.ptr + 1, end, name.repetition);
    if (repetition.ec != std::errc() || repetition.ptr != end) return std::nullopt;
  }
  return to_text(name) == text ? std::optional<Name>(name) : std::nullopt;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_whole(const std::string& checkpoint) {
  try {
    read_manifest(checkpoint);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

// Whole or not, in order.
std::vector<Name> names_in(const std::string& folder) {
  std::vector<Name> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto name = parse_name(entry->path().filename().string())) names.push_back(*name);
  }
  if (error) {
    throw CheckpointError(folder, fmt::format(": {}; check the path and its permissions", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string path_of(const std::string& folder, const Name& name) { return folder + "/" + to_text(name); }

bool remove_folder(FileSystem& files, const std::string& path) {
  std::error_code error;
  bool is_empty = true;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    is_empty = files.unlink(entry->path().string()) == 0 && is_empty;
  }
  return !error && is_empty && files.rmdir(path) == 0;
}

void remove_leftovers(FileSystem& files, const std::string& folder) {
  std::vector<std::string> leftovers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!ends_with(name, kTemporary)) continue;
    if (name.compare(0, kPrefix.size(), kPrefix) == 0) {
      leftovers.push_back(entry->path().string());
    } else if (name.compare(0, std::string_view(kLatest).size(), kLatest) == 0) {
      files.unlink(entry->path().string());
    }
  }
  for (const std::string& path : leftovers) remove_folder(files, path);
}

void make_folder(FileSystem& files, const std::string& path) {
  if (is_folder(path)) return;
  const std::string parent = directory_of(path);
  if (!is_there(parent)) make_folder(files, parent);
  if (files.mkdir(path) != 0 && errno != EEXIST) throw_file_error(path, "cannot be created");
  sync_directory(files, parent);
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestName;
  Manifest manifest = parse_manifest(detail::read_json_file(path), path);
  for (const ManifestFile& file : manifest.files) {
    const std::string file_path = checkpoint + "/" + file.name;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(file_path, error);
    if (error) {
      throw CheckpointError(file_path, fmt::format(": {}; resume from another checkpoint", error.message()));
    }
    if (bytes != static_cast<std::uintmax_t>(file.bytes)) {
      throw CheckpointError(file_path,
                            fmt::format(" has {} bytes, but its manifest says {}: it is damaged; resume from "
                                        "another checkpoint",
                                        bytes, file.bytes));
    }
  }
  return manifest;
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::string> paths;
  for (const Name& name : names_in(without_slashes(folder))) {
    std::string path = path_of(without_slashes(folder), name);
    if (is_whole(path)) paths.push_back(std::move(path));
  }
  return paths;
}

std::string latest_name(const std::string& folder) {
  constexpr std::size_t kMostBytes = 4096;
  const std::string text = read_small_file(folder + "/" + kLatest, kMostBytes).content;
  return text.substr(0, text.find('\n'));
}

std::string latest_checkpoint(const std::string& given_folder) {
  const std::string folder = without_slashes(given_folder);
  if (!is_folder(folder)) return "";
  const std::string said = latest_name(folder);
  if (parse_name(said) && is_whole(folder + "/" + said)) return folder + "/" + said;
  const std::vector<std::string> whole = list_checkpoints(folder);
  return whole.empty() ? "" : whole.back();
}

std::string resolve_checkpoint(const std::string& path) {
  if (is_there(path + "/" + kManifestName)) return without_slashes(path);
  std::string latest = latest_checkpoint(path);
  if (latest.empty()) {
    throw CheckpointError(path, is_there(path) ? ": there is no whole checkpoint in it; name another folder"
                                               : ": there is no such folder; check the path");
  }
  return latest;
}

void detail::make_checkpoint_folder(FileSystem& files, const std::string& folder) {
  if (folder.empty()) throw InvalidArgument("the folder of the checkpoints has no name");
  make_folder(files, without_slashes(folder));
}

std::string detail::begin_checkpoint(FileSystem& files, const std::string& given_folder, std::int64_t step) {
  const std::string folder = without_slashes(given_folder);
  if (step < 0) throw InvalidArgument(fmt::format("step {} is below 0", step));
  make_checkpoint_folder(files, folder);
  remove_leftovers(files, folder);
  std::string path = path_of(folder, {step, 0}) + std::string(kTemporary);
  if (files.mkdir(path) != 0) throw_file_error(path, "cannot be created");
  return path;
}

std::string detail::commit_checkpoint(FileSystem& files, const std::string& temporary, const Manifest& manifest) {
  const std::string folder = directory_of(temporary);
  OutputFile file(files, temporary + "/" + kManifestName);
  const std::string json = to_json(manifest);
  file.write(json.data(), json.size());
  file.finish();
  read_manifest(temporary);  // what cannot be read again is not put in place
  sync_directory(files, temporary);
  Name name{manifest.step, 0};
  while (is_there(path_of(folder, name))) ++name.repetition;
  std::string path = path_of(folder, name);
  put_in_place(files, temporary, path);
  replace_file(files, folder + "/" + kLatest, to_text(name) + "\n");
  return path;
}

std::vector<std::string> detail::remove_old_checkpoints(FileSystem& files, const std::string& newest,
                                                        const Retention& retention) {
  const std::string folder = directory_of(newest);
  const Name newest_name = *parse_name(fs::path(newest).filename().string());
  std::vector<std::string> not_removed;
  std::vector<Name> names = names_in(folder);
  int num_later = 0;  // kept ones of other steps
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const bool is_newest = !(*name < newest_name) && !(newest_name < *name);
    const bool is_superseded =
        name->step == newest_name.step ? !is_newest : (name != names.rbegin() && std::prev(name)->step == name->step);
    bool is_kept = !is_superseded;
    if (is_kept) {
      const bool is_among_last = retention.keep_last == 0 || num_later < retention.keep_last;
      const bool is_round = retention.keep_every != 0 && name->step % retention.keep_every == 0;
      is_kept = is_newest || is_among_last || is_round;
      if (is_whole(path_of(folder, *name))) ++num_later;
    }
    if (is_kept) continue;
    // Under another name first: what is half removed is no checkpoint.
    const std::string path = path_of(folder, *name);
    const std::string doomed = path + std::string(kTemporary);
    if (files.rename(path, doomed) != 0 || !remove_folder(files, doomed)) not_removed.push_back(path);
  }
  return not_removed;
}

void detail::discard_checkpoint(FileSystem& files, const std::string& temporary) { remove_folder(files, temporary); }

}  // namespace gpipe
