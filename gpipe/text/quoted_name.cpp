#include "gpipe/text/quoted_name.h"

#include <nlohmann/json.hpp>

#include "gpipe/text/printable.h"

namespace gpipe {

std::string quoted_name(std::string_view text, std::size_t most_bytes) {
  const nlohmann::json head = std::string(text.substr(0, most_bytes));
  const std::string shown =
      printable(head.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::ignore));
  return text.size() > most_bytes ? shown + "..." : shown;
}

}  // namespace gpipe
