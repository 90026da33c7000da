// The look of --help: a usage line written by hand, grouped options, examples.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpipe::cli {

struct Help {
  std::string usage;     // what follows "Usage: "
  std::string summary;   // one line, shown in the list of commands too
  std::string details;   // what a first-time user has to know, a paragraph; may be empty
  std::string examples;  // command lines, one a line
};

// Gives `command` its texts and its -h. Call after the options are added: -h is listed last.
void set_help(CLI::App& command, const Help& help);

}  // namespace gpipe::cli
