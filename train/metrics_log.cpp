#include "train/metrics_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpipe/error.h"

namespace gpipe::train {
namespace {

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw Error(fmt::format("cannot write '{}': {}; name a file in a folder that exists and has room", path,
                          std::strerror(error)));
}

[[noreturn]] void throw_exists(const std::string& path) {
  throw InvalidArgument(fmt::format("'{}' already exists; name another file, or add --force to replace it", path));
}

std::FILE* open(const std::string& path, bool force) {
  std::error_code ignored;
  if (!force && std::filesystem::is_regular_file(path, ignored)) throw_exists(path);
  // "x": a file that appeared since the check is not replaced either; a pipe or a device is there to be written to.
  const bool exists = std::filesystem::exists(path, ignored);
  std::FILE* file = std::fopen(path.c_str(), exists ? "wb" : "wbx");
  if (file == nullptr) errno == EEXIST ? throw_exists(path) : throw_unwritable(path, errno);
  return file;
}

}  // namespace

std::string to_json(const Metrics& metrics) {
  using nlohmann::ordered_json;
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : metrics) {
    std::visit([&json, &key = name](const auto& one) { json[key] = one; }, value);
  }
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

MetricsLog::MetricsLog(std::string path, bool force) : path_(std::move(path)), file_(open(path_, force), std::fclose) {}

MetricsLog MetricsLog::resume(const std::string& path, std::int64_t step) {
  std::string kept;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const bool is_whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
      if (is_whole && json["step"].get<std::int64_t>() <= step) kept += line + "\n";
    }
  }
  MetricsLog log(path, /*force=*/true);
  const bool written = std::fwrite(kept.data(), 1, kept.size(), log.file_.get()) == kept.size();
  if (!written || std::fflush(log.file_.get()) != 0) throw_unwritable(path, errno);
  return log;
}

void MetricsLog::append(const Metrics& metrics) {
  const std::string line = to_json(metrics) + "\n";
  // One write a line: who reads along sees whole lines.
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) throw_unwritable(path_, errno);
}

}  // namespace gpipe::train
