// Arguments that no command or option has claimed, answered with the nearest valid name.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// The deepest one on the command line: "image" in "gpipe train image"; `app` itself if none is.
const CLI::App& named_command(const CLI::App& app);

// Throws UsageError for the first argument of a parsed `app` that nothing took.
void refuse_unknown_arguments(const CLI::App& app);

}  // namespace gpipe::cli
