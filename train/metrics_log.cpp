#include "train/metrics_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "gpipe/error.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/json.h"

namespace gpipe::train {
namespace {

[[noreturn]] void throw_exists(const std::string& path) {
  throw InvalidArgument(fmt::format("'{}' already exists; name another file, or add --force to replace it", path));
}

// Where a file is, one that begins with `content` takes its place; a pipe or a device is there to be written into.
FileDescriptor open(const std::string& path, bool force, const std::string& content) {
  const OutputPath target = look_at_output(path);
  if (target.kind == OutputKind::kRefused) {
    throw Error(fmt::format("cannot write '{}': it is {}, not a plain file; name another file", path, target.what));
  }
  if (target.kind == OutputKind::kPlainFile) {
    if (!force) throw_exists(path);
    replace_file(real_file_system(), path, content);
  }
  FileDescriptor file = open_output(path, target.kind);
  if (!file.is_open()) errno == EEXIST ? throw_exists(path) : cli::throw_unwritable(path, errno);
  return file;
}

}  // namespace

std::string to_json(const Metrics& metrics) {
  using nlohmann::ordered_json;
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : metrics) {
    std::visit([&json, &key = name](const auto& one) { json[key] = one; }, value);
  }
  return one_line_json(json);
}

MetricsLog::MetricsLog(std::string path, bool force) : MetricsLog(std::move(path), force, "") {}

MetricsLog::MetricsLog(std::string path, bool force, const std::string& content)
    : path_(std::move(path)), file_(open(path_, force, content)) {}

MetricsLog MetricsLog::resume(const std::string& path, std::int64_t step) {
  std::string kept;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = find_json_document(line).value_or(nullptr);
      const bool is_whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
      if (is_whole && json["step"].get<std::int64_t>() <= step) kept += line + "\n";
    }
  }
  return MetricsLog(path, /*force=*/true, kept);
}

void MetricsLog::append(const Metrics& metrics) {
  const std::string line = to_json(metrics) + "\n";
  // One write a line: who reads along sees whole lines.
  if (!write_all(file_.get(), line.data(), line.size())) cli::throw_unwritable(path_, errno);
}

}  // namespace gpipe::train
