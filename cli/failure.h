// From whatever was thrown to a message in the words of the command line, and an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpipe::cli {

// REQUIRES: called while an exception is handled. Prints it to standard error (help and version, which CLI11 throws
// too, to standard output) and returns the exit code. Throws nothing.
int report_failure(const CLI::App& app) noexcept;

// Prints what is wrong with the usage, once for all ranks that were started alike, and returns the exit code.
int report_usage(const std::string& message, const std::string& hint);

// Of ranks that a launcher has started with one command line, one says what is wrong with it. False at once if this
// process is alone or the first of its launcher's ranks on this host: it has to tell. Any other rank gives the first
// one the time to tell the same, whereupon the launcher ends this one; true if it has. False if nobody ended it within
// some seconds: then the error is this rank's alone.
bool is_told_by_the_first_rank();

// `message` with what the library calls a thing, such as num_micro_batches, replaced by the option that a user typed
// for it, --micro-batches, wherever the command that was named has this option. Names in quotes are those of a file's
// fields, and stay.
std::string with_option_names(const std::string& message, const CLI::App& app);

}  // namespace gpipe::cli
