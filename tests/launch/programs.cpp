// The main function of tests that start programs: it runs the one that is named, or the tests.
#include "tests/launch/programs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

namespace gpipe::test {
namespace {

std::map<std::string, std::function<void()>>& programs() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

}  // namespace

Program::Program(const std::string& name, std::function<void()> run) {
  if (!programs().emplace(name, std::move(run)).second) throw std::logic_error("there are two programs " + name);
}

int run_program(const std::string& name) {
  const auto found = programs().find(name);
  if (found == programs().end()) {
    std::fprintf(stderr, "there is no program '%s'; there are:", name.c_str());
    for (const auto& [other, run] : programs()) std::fprintf(stderr, " %s", other.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  try {
    found->second();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "the program has thrown: " << error.what();
  }
  const bool failed = ::testing::UnitTest::GetInstance()->Failed();
  std::printf("program %s has %s\n", name.c_str(), failed ? "failed" : "passed");
  return failed ? 1 : 0;
}

std::vector<std::string> command_of_program(const std::string& name) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "--program", name};
}

}  // namespace gpipe::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--program") return gpipe::test::run_program(argv[2]);
  return RUN_ALL_TESTS();
}
