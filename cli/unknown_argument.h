// Arguments that no command or option has claimed, answered with the nearest valid name.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// Throws UsageError for the first argument of a parsed `app` that nothing took.
void refuse_unknown_arguments(const CLI::App& app);

}  // namespace gpipe::cli
