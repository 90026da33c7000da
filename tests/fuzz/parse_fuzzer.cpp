// Feeds arbitrary bytes to everything that reads a file. Each either takes them or throws gpipe::Error; anything else
// that escapes, and whatever a sanitizer sees, is a defect. What parses must come back the same from its own text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"

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
  return 0;
}
