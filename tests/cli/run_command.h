// Runs the real gpipe command and keeps what it printed.
#pragma once

#include <string>
#include <vector>

#include "tests/os/temporary_folder.h"

namespace gpipe::cli {

struct Outcome {
  int exit_code = -1;  // 128 + the signal for a command that a signal ended
  std::string out;
  std::string err;
};

using Arguments = std::vector<std::string>;

// Standard input holds `input`; `environment` has entries such as "PATH=/bin" that replace those of this process.
Outcome run_gpipe(const Arguments& arguments, const std::string& input = "", const Arguments& environment = {});

// The same; gets the signal once it has printed `text`.
Outcome run_gpipe_with_signal(const Arguments& arguments, const std::string& text, int signal);

// The same with standard output sent to an existing file, such as /dev/full; `out` stays empty.
Outcome run_gpipe_into(const std::string& output_path, const Arguments& arguments);

// The same on a terminal of `columns`; `out` is what it shows. That is what goes to standard error, too, if
// `shows_errors`.
Outcome run_gpipe_on_terminal(const Arguments& arguments, int columns, const Arguments& environment = {},
                              bool shows_errors = false);

using test::TemporaryFolder;

std::string read_file(const std::string& path);

// Bytes of the longest line.
std::size_t longest_line(const std::string& text);

}  // namespace gpipe::cli
