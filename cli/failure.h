// From whatever was thrown to a message and an exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// REQUIRES: called while an exception is handled. Prints it to standard error (help and version, which CLI11 throws
// too, to standard output) and returns the exit code. Throws nothing.
int report_failure(const CLI::App& app) noexcept;

}  // namespace gpipe::cli
