// Programs that tests start as processes of their own, by a launcher or without one. They are in the binary of the
// tests: `process_tests --program NAME` runs one of them instead of the tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpipe::test {

// Gives a program its name, before main begins:
//
//   const Program kQuickstart("Quickstart", [] { … });
//
// What it expects with the macros of GoogleTest counts: it ends with 0 if all of that has held, with 1 if something has
// not, or if it has thrown.
class Program {
 public:
  Program(const std::string& name, std::function<void()> run);
};

// Runs it, says how it ended, and gives the exit code; that is 2 if there is no such program.
int run_program(const std::string& name);

// The words that start it.
std::vector<std::string> command_of_program(const std::string& name);

}  // namespace gpipe::test
