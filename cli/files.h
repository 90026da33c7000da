// Files the command reads and writes. An existing file is never overwritten unless the user says --force, and nothing
// but a plain file ever: see Note [What may be written].
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/plan/profile.h"
#include "gpipe/plan/worker_costs.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::cli {

// The whole file, or standard input for "-". Throws UsageError if it cannot be read or holds more than 1 GiB.
std::string read_input_file(const std::string& path);

// Throws UsageError, as read_input_file does, if there is no file and no folder of this name. For files that something
// else reads: a file that is not there is then the same error in every command.
void require_input(const std::string& path);

// Whether something is there, and whether that is a folder; links are followed. Throw CheckpointError if it cannot be
// told, such as in a folder that one may not look into.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

// All throw UsageError, naming the file and the place, for what cannot be read or parsed.
Schedule read_schedule(const std::string& path);
Profile read_profile(const std::string& path);
// Also if it is for another number of workers. `link` says what a link of the file does not.
std::vector<WorkerCosts> read_workers(const std::string& path, int num_workers, const LinkCosts& link);

// How messages call it: the path, or "standard input".
std::string input_name(const std::string& path);

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

// A file that is written piece by piece, and can be read meanwhile: each write is in the file at once.
using GrowingFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
// A file that is there is replaced by one that begins with `content`; a stream, or a new file, begins with nothing.
// Throws as write_output_file does.
GrowingFile begin_output_file(const std::string& path, std::string_view content, bool force);

// For an errno that opening or writing the file ended with: OutputError if there is no room, else UsageError.
[[noreturn]] void throw_unwritable(const std::string& path, int error);

}  // namespace gpipe::cli
