// The seal of a manifest: see Note [The manifest's checksum].
#pragma once

#include <string>
#include <string_view>

namespace gpipe::detail {

// The text of a JSON object, as `to_json` of a manifest writes it, with its checksum at the end.
std::string seal_manifest(std::string_view json);

}  // namespace gpipe::detail
