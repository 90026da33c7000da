// Programs that are installed with this one: where they are, and one that is run on the way.
#pragma once

#include <string>
#include <vector>

namespace gpipe::cli {

// The commands that need libtorch.
constexpr const char* kTrainProgram = "gpipe-train";
constexpr const char* kIfTrainIsMissing = "build gpipe with libtorch: make build, without GPIPE_BUILD_TORCH=OFF";

// The path of a file that is given from the folder of this program.
std::string path_from_this_program(const std::string& path);

// Runs the program and waits for it. What it prints goes nowhere; its complaints go where this program's go. Returns
// its exit code, or 128 + the signal that ended it. Throws UsageError if it cannot be started, with `if_missing` as the
// hint if it is not there.
int run_quietly(const std::string& program, const std::vector<std::string>& arguments, const std::string& if_missing);

}  // namespace gpipe::cli
