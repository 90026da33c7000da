// A JSON text as a value with one meaning: no name occurs twice in an object.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "gpipe/text/json_events.h"

namespace gpipe {

// Both throw JsonProblem; see read_json.
nlohmann::json json_document(std::string_view text, const JsonLimits& limits = {});
// The names stay in the order of the text.
nlohmann::ordered_json ordered_json_document(std::string_view text, const JsonLimits& limits = {});

// Nothing if the text is no such JSON, for callers that do not tell why.
std::optional<nlohmann::json> find_json_document(std::string_view text);

}  // namespace gpipe
