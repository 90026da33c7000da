#include "gpipe/execute/all_ranks.h"

#include "gpipe/execute/engine/engine.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {

bool any_rank(const Pipeline& pipeline, bool value) {
  detail::WireRecord own;
  own.add("value", value);
  for (const detail::WireRecord& given : pipeline->engine().group().gather(own)) {
    detail::WireReader reader(given, "this is not a rank's yes or no");
    value |= reader.flag("value");
    reader.finish();
  }
  return value;
}

void agree_on(const Pipeline& pipeline, const std::string& text) {
  pipeline->engine().group().compare({{detail::kAgreedText, text}});
}

std::string of_first_rank(const Pipeline& pipeline, const std::string& text) {
  detail::WireRecord own;
  own.add("text", text);
  const detail::WireRecord first = pipeline->engine().group().gather(own).front();
  detail::WireReader reader(first, "this is not a rank's text");
  std::string of_first = reader.text("text");
  reader.finish();
  return of_first;
}

}  // namespace gpipe
