// Hostile values for every option of a command that takes a number. A command refuses such a value in one clear line,
// soon and in little memory, or works with it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "run_command.h"

namespace gpipe::cli {

// Runs in a process of its own, with the folder of the test as its own folder; returns the exit code.
using Program = std::function<int(const Arguments&)>;

struct HostileCase {
  Arguments command;               // such as train, image
  std::vector<Arguments> options;  // a name and its value, or only one of them
  std::string input = {};          // on standard input
  Arguments program = {};          // behind '--'
  // Options that a large number is fine for and means much work, which may say nothing until it is done.
  std::set<std::string> long_work = {};
};

// The command as it is has to work. Then every option that the command's help has, and every value, in place of the
// option's own in `cases`, if it is there. Each refusal that is not as it should be is a failure of the test.
void expect_clear_refusals(const Program& program, const HostileCase& base);

// Reads the help: the words of every command and of those below it.
std::vector<Arguments> commands_of(const Arguments& command = {});

}  // namespace gpipe::cli
