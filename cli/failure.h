// From whatever was thrown to a message and an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpipe::cli {

// REQUIRES: called while an exception is handled. Prints it to standard error (help and version, which CLI11 throws
// too, to standard output) and returns the exit code. Throws nothing.
int report_failure(const CLI::App& app) noexcept;

// Prints what is wrong with the usage, once for all ranks that were started alike, and returns the exit code.
int report_usage(const std::string& message, const std::string& hint);

}  // namespace gpipe::cli
