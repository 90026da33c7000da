// Options from a file: `--config FILE`, in JSON or TOML, with the names of the command line.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

//   {"stages": 4, "lr": 1e-3, "augment": true}          JSON: one object, told by its brace
//
//   stages = 4                                          TOML, as CLI11 reads it: one option a line, no sections,
//   lr = 1e-3                                           strings without escapes or '#'
//
// Gives `app` the option. What stands on the command line wins over the file. Options of the command that was named on
// the command line are meant as well as those of `app`; for `app COMMAND --config FILE`, call app.fallthrough().
// Parsing throws gpipe::ParseError, with the file and the line where it is known, for what is neither, for a name that
// is no option (with the nearest one) or is given twice, and for a value that is no number, string, boolean or list of
// those. Values are then read by the options themselves. REQUIRES: `app` is the one that parses, and outlives the
// parsing.
CLI::Option* add_config_option(CLI::App& app);

}  // namespace gpipe::cli
