// Errors of the library in the words of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpipe::cli {

// `message` with what the library calls a thing, such as num_micro_batches, replaced by the option that a user typed
// for it, --micro-batches, wherever the command that was named has this option. Names in quotes are those of a file's
// fields, and stay.
std::string with_option_names(const std::string& message, const CLI::App& app);

}  // namespace gpipe::cli
