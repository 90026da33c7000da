// Files the command writes. An existing file is never overwritten unless the user says --force.
#pragma once

#include <string>
#include <string_view>

namespace gpipe::cli {

// Whether two paths name one file, however they are written; it need not exist.
bool is_same_file(const std::string& a, const std::string& b);

// Throws UsageError if `path` exists (and is not a device or a pipe) without `force`, or could not be created. Commands
// call it before they do any work.
void check_output_file(const std::string& path, bool force);

// Throws UsageError; a file that could not be written in full is removed.
void write_output_file(const std::string& path, std::string_view content, bool force);

}  // namespace gpipe::cli
