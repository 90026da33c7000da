#include "gpipe/recording/verify_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

int parse_whole(const char* variable, std::string_view word, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc() && end == word.data() + word.size() && value >= least) return value;
  throw EnvironmentError(
      fmt::format("{} is '{}'; expected a whole number from {} on: 'gpipe verify' sets it", variable, word, least),
      variable);
}

std::vector<std::string_view> split(std::string_view words, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(separator, begin), words.size());
    parts.push_back(words.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

constexpr const char* kFolder = "GPIPE_VERIFY";
constexpr const char* kSteps = "GPIPE_VERIFY_STEPS";
constexpr const char* kStages = "GPIPE_VERIFY_STAGES";
constexpr const char* kSchedule = "GPIPE_VERIFY_SCHEDULE";
constexpr const char* kRecompute = "GPIPE_VERIFY_RECOMPUTE";
constexpr const char* kMicroBatches = "GPIPE_VERIFY_MICRO_BATCHES";
constexpr const char* kArrivals = "GPIPE_VERIFY_ARRIVALS";
constexpr const char* kProbe = "GPIPE_VERIFY_PROBE";

}  // namespace

std::vector<std::string> to_environment(const VerifyRequest& request) {
  const auto set = [](const char* variable, const std::string& value) { return fmt::format("{}={}", variable, value); };
  return {set(kFolder, request.folder),
          set(kSteps, std::to_string(request.num_steps)),
          set(kStages, request.num_stages ? std::to_string(*request.num_stages) : ""),
          set(kSchedule, request.schedule.value_or("")),
          set(kRecompute, request.recompute ? name(*request.recompute) : ""),
          set(kMicroBatches, fmt::format("{}", fmt::join(request.num_micro_batches, ","))),
          set(kArrivals, request.with_arrivals ? "1" : ""),
          set(kProbe, request.probed ? fmt::format("{}:{}", request.probed->pipeline, request.probed->layer) : "")};
}

std::optional<VerifyRequest> verify_request_from(const Variables& variables) {
  const auto value = [&](const char* variable) { return variables(variable).value_or(""); };
  VerifyRequest request;
  request.folder = value(kFolder);
  if (request.folder.empty()) return std::nullopt;
  if (const std::string steps = value(kSteps); !steps.empty()) request.num_steps = parse_whole(kSteps, steps, 1);
  if (const std::string stages = value(kStages); !stages.empty()) request.num_stages = parse_whole(kStages, stages, 1);
  if (const std::string schedule = value(kSchedule); !schedule.empty()) request.schedule = schedule;
  if (const std::string recompute = value(kRecompute); !recompute.empty()) {
    try {
      request.recompute = parse_recompute(recompute);
    } catch (const InvalidArgument& error) {
      throw EnvironmentError(fmt::format("{}: {}", kRecompute, error.what()), kRecompute);
    }
  }
  if (const std::string counts = value(kMicroBatches); !counts.empty()) {
    for (const std::string_view count : split(counts, ',')) {
      request.num_micro_batches.push_back(parse_whole(kMicroBatches, count, 1));
    }
  }
  request.with_arrivals = !value(kArrivals).empty();
  if (const std::string probe = value(kProbe); !probe.empty()) {
    const std::vector<std::string_view> parts = split(probe, ':');
    request.probed = ProbedLayer{parse_whole(kProbe, parts.front(), 0), parse_whole(kProbe, parts.back(), 0)};
  }
  return request;
}

}  // namespace gpipe::detail
