// Feeds arbitrary bytes to everything that reads a file, and to what reads the records of other ranks. Each either
// takes them or throws gpipe::Error; anything else that escapes, and whatever a sanitizer sees, is a defect. What
// parses must come back the same from its own text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/checkpoint_files/manifest_seal.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/error.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/worker_costs.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/text/wire_fields.h"

namespace {

template <typename Function>
void tolerate_errors(Function function) {
  try {
    function();
  } catch (const gpipe::Error&) {
  }
}

void require(bool holds) {
  if (!holds) std::abort();
}

// A fuzzer does not find the eight bytes of a length by itself.
std::string as_safetensors(std::string_view text) {
  const std::size_t end = text.rfind("}}");
  const std::uint64_t length = end == std::string_view::npos ? text.size() : end + 2;
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + std::string(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tolerate_errors([&] {
    const gpipe::Schedule schedule = gpipe::parse_text(text);
    require(gpipe::parse_text(gpipe::to_text(schedule)) == schedule);
  });
  tolerate_errors([&] {
    const gpipe::Schedule schedule = gpipe::parse_csv(text);
    require(gpipe::parse_csv(gpipe::to_csv(schedule)) == schedule);
  });
  tolerate_errors([&] { gpipe::validate(gpipe::parse_schedule(text)); });
  tolerate_errors([&] {
    const std::string json = gpipe::to_json(gpipe::parse_profile(text));
    require(gpipe::to_json(gpipe::parse_profile(json)) == json);
  });
  tolerate_errors([&] {
    const std::string json = gpipe::to_json(gpipe::parse_plan(text));
    require(gpipe::to_json(gpipe::parse_plan(json)) == json);
  });
  tolerate_errors([&] {
    const std::vector<gpipe::WorkerCosts> workers = gpipe::parse_workers(text);
    require(gpipe::parse_workers(gpipe::to_json(workers)) == workers);
  });
  tolerate_errors([&] {
    const std::string file = text.size() < 8 || text[7] != '{' ? std::string(text) : as_safetensors(text.substr(7));
    for (const gpipe::detail::SafetensorsEntry& entry : gpipe::detail::parse_safetensors(file, "file").entries) {
      require(entry.begin >= 0 && entry.begin <= entry.end && entry.end <= static_cast<std::int64_t>(file.size()));
    }
  });
  tolerate_errors([&] {
    const std::string json = gpipe::detail::to_json(gpipe::detail::parse_safetensors_index(text, "file"));
    require(gpipe::detail::to_json(gpipe::detail::parse_safetensors_index(json, "file")) == json);
  });
  tolerate_errors([&] {
    const std::string json = gpipe::to_json(gpipe::parse_manifest(gpipe::detail::seal_manifest(text), "file"));
    require(gpipe::to_json(gpipe::parse_manifest(json, "file")) == json);
  });
  tolerate_errors([&] { require(gpipe::detail::encode_fields(gpipe::detail::decode_fields(text)) == text); });
  return 0;
}
