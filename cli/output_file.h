// Files the command writes. An existing file is never overwritten unless the user says --force, and nothing but a plain
// file ever: see Note [What may be written].
#pragma once

#include <string>
#include <string_view>

namespace gpipe::cli {

// Whether two paths name one file, however they are written; it need not exist.
bool is_same_file(const std::string& a, const std::string& b);

// Throws UsageError if `path` is a file already, without `force`, is neither a file nor a stream such as /dev/stdout,
// or could not be created. Commands call it before they do any work.
void check_output_file(const std::string& path, bool force);
// The same for a file that is written under another name and put in place when it is whole, such as weights: no
// streams.
void check_replaced_file(const std::string& path, bool force);

// Throws UsageError, or OutputError if there was no room; then a file that was there is as before, and a new one is not
// there. A stream is written into.
void write_output_file(const std::string& path, std::string_view content, bool force);

// For an errno that opening or writing the file ended with: OutputError if there is no room, else UsageError.
[[noreturn]] void throw_unwritable(const std::string& path, int error);

}  // namespace gpipe::cli
