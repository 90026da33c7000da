#include "train/metrics_log.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gpipe::train {

using nlohmann::ordered_json;

MetricsLog::MetricsLog(std::string path, bool force, const std::string& content)
    : path_(std::move(path)), file_(cli::begin_output_file(path_, content, force)) {}

MetricsLog MetricsLog::resume(const std::string& path, std::int64_t step) {
  std::string kept;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line);) {
      const ordered_json json = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
      const bool is_whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
      if (is_whole && json["step"].get<std::int64_t>() <= step) kept += line + "\n";
    }
  }
  return MetricsLog(path, /*force=*/true, kept);
}

void MetricsLog::append(const ordered_json& metrics) {
  const std::string line = metrics.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
  // One write a line: who reads along sees whole lines.
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size()) cli::throw_unwritable(path_, errno);
}

}  // namespace gpipe::train
