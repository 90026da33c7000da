#include "cli/doctor_command.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/version.h"

namespace gpipe::cli {
namespace {

namespace fs = std::filesystem;

// The value of the first line "key<separator>value" of a file; empty if there is none.
std::string read_field(const char* file, const std::string& key, char separator) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", line.find(separator, key.size()) + 1);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
  }
  return "";
}

std::string memory(const char* key) {
  const long long kibibytes = std::atoll(read_field("/proc/meminfo", key, ':').c_str());
  return kibibytes > 0 ? format_bytes(kibibytes * 1024) : "unknown";
}

std::vector<std::string> split_path(const char* variable) {
  std::vector<std::string> folders;
  std::istringstream words(environment(variable));
  for (std::string folder; std::getline(words, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders = split_path("LD_LIBRARY_PATH");
  utsname system{};
  uname(&system);
  folders.push_back(fmt::format("/usr/lib/{}-linux-gnu", system.machine));
  for (const char* folder : {"/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64", "/opt/libtorch/lib"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

// The first folder that has the file; the symlinks of the file resolved. Empty if none has it.
std::string find_file(const std::vector<std::string>& folders, const std::string& name) {
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path resolved = fs::canonical(fs::path(folder) / name, error);
    if (!error) return resolved.string();
  }
  return "";
}

std::string find_tool(const std::string& name) {
  for (const std::string& folder : split_path("PATH")) {
    const std::string path = (fs::path(folder) / name).string();
    if (access(path.c_str(), X_OK) == 0 && !fs::is_directory(path)) return path;
  }
  return "";
}

Check check_library(const std::string& name, const std::string& file, Finding if_absent, const std::string& package) {
  const std::string path = find_file(library_folders(), file);
  if (!path.empty()) return {"libraries", name, Finding::kOk, path, ""};
  return {"libraries", name, if_absent, fmt::format("no {} in the library folders", file),
          "apt-get install " + package};
}

Check check_tool(const std::string& name, Finding if_absent, const std::string& package) {
  const std::string path = find_tool(name);
  if (!path.empty()) return {"tools", name, Finding::kOk, path, ""};
  return {"tools", name, if_absent, "not in PATH", "apt-get install " + package};
}

Check check_system() {
  utsname system{};
  uname(&system);
  const std::string name = read_field("/etc/os-release", "PRETTY_NAME", '=');
  return {"machine", "system", Finding::kFact,
          fmt::format("{}, {}\n{} {}", name.empty() ? "unknown" : name, system.machine, system.sysname, system.release),
          ""};
}

Check check_processor() {
  const std::string model = read_field("/proc/cpuinfo", "model name", ':');
  return {"machine", "processor", Finding::kFact,
          fmt::format("{}, {} cores", model.empty() ? "unknown" : model, std::thread::hardware_concurrency()), ""};
}

std::vector<Check> check_machine() {
  return {check_system(),
          check_processor(),
          {"machine", "memory", Finding::kFact,
           fmt::format("{}, {} available", memory("MemTotal"), memory("MemAvailable")), ""},
          check_library("libtorch", "libtorch_cpu.so", Finding::kMissing, "libtorch-dev"),
          check_blas(find_file(library_folders(), "libblas.so.3")),
          check_library("gloo", "libgloo.so", Finding::kOptional, "libgloo-dev (for pipelines across processes)"),
          check_tool("cmake", Finding::kMissing, "cmake"),
          check_tool("g++", Finding::kMissing, "g++"),
          check_tool("ninja", Finding::kOptional, "ninja-build"),
          check_tool("ccache", Finding::kOptional, "ccache"),
          check_tool("clang-format", Finding::kOptional, "clang-format")};
}

// By Finding: a word, and the terminal's own colour for it.
constexpr std::array<std::pair<const char*, const char*>, 6> kMarks = {{{"", ""},
                                                                        {"ok", "\x1b[32m"},
                                                                        {"warning", "\x1b[33m"},
                                                                        {"missing", "\x1b[31m"},
                                                                        {"wrong", "\x1b[31m"},
                                                                        {"optional", "\x1b[2m"}}};

// A line of several lines, the further ones under the first.
std::string indented(std::string lines) {
  for (std::size_t at = lines.find('\n'); at != std::string::npos; at = lines.find('\n', at + 1)) {
    lines.insert(at + 1, 26, ' ');
  }
  return lines;
}

std::string to_text(const Check& check, bool colour) {
  const auto& [word, paint] = kMarks.at(static_cast<std::size_t>(check.finding));
  const std::string padded = fmt::format("{:<8}", word);
  const std::string painted = colour && *paint != '\0' ? paint + padded + "\x1b[0m" : padded;
  std::string text = fmt::format("  {}  {:<12}  {}\n", painted, check.name, indented(check.detail));
  if (!check.advice.empty()) text += fmt::format("{:>26}{}\n", "", indented(check.advice));
  return text;
}

std::string to_text(const std::vector<Check>& checks, bool colour) {
  std::string text;
  std::string topic;
  for (const Check& check : checks) {
    if (check.topic != topic) text += (topic.empty() ? "" : "\n") + check.topic + "\n";
    topic = check.topic;
    text += to_text(check, colour);
  }
  return text;
}

int run_doctor() {
  std::vector<Check> checks = {{"gpipe", "version", Finding::kFact, GPIPE_VERSION, ""},
                               {"gpipe", "built with", Finding::kFact, GPIPE_COMPILER ", " GPIPE_BUILD_TYPE, ""}};
  const std::vector<Check> machine = check_machine();
  checks.insert(checks.end(), machine.begin(), machine.end());
  print(to_text(checks, shows_colour(Colour::kAuto)));
  std::vector<std::string> unready;
  for (const Check& check : checks) {
    if (check.finding == Finding::kMissing || check.finding == Finding::kWrong) unready.push_back(check.name);
  }
  if (unready.empty()) return kDone;
  flush_output();
  print_error(fmt::format("not ready for training: {}", fmt::join(unready, ", ")), "see above what to install");
  return kNegativeAnswer;
}

}  // namespace

Check check_blas(const std::string& resolved_path) {
  const auto has = [&resolved_path](const char* word) { return resolved_path.find(word) != std::string::npos; };
  const std::string advice =
      "apt-get install libopenblas0-openmp\n"
      "update-alternatives --config libblas.so.3-$(uname -m)-linux-gnu";
  const auto found = [&](Finding finding, const char* what) {
    return Check{"libraries", "blas", finding, fmt::format("{}\n{}", resolved_path, what),
                 finding == Finding::kOk ? "" : advice};
  };
  if (resolved_path.empty()) {
    return {"libraries", "blas", Finding::kMissing, "no libblas.so.3 in the library folders", advice};
  }
  if (has("openblas-openmp")) return found(Finding::kOk, "OpenBLAS with OpenMP");
  if (has("openblas-serial")) {
    return found(Finding::kWrong,
                 "OpenBLAS without threads is not thread-safe: stages that\n"
                 "run at the same time get wrong numbers");
  }
  if (has("openblas")) {
    return found(Finding::kWarning,
                 "OpenBLAS with threads of its own: stages that run at the\n"
                 "same time fight for the cores and slow down");
  }
  if (has("mkl")) return found(Finding::kOk, "MKL");
  if (has("/blas/") || has("libblas.so.3.")) {
    return found(Finding::kWrong,
                 "the reference BLAS: matrix products are 40 times slower\n"
                 "than with OpenBLAS");
  }
  return found(Finding::kWarning, "gpipe has not been tried with this BLAS");
}

void add_doctor_command(CLI::App& app, Run& chosen) {
  CLI::App& sub = *app.add_subcommand("doctor");
  set_help(sub, {"gpipe doctor", "Say what this machine has and what it lacks for training with gpipe.",
                 "Exit code 1 if something required is missing.", "  gpipe doctor"});
  sub.callback([&chosen] { chosen = run_doctor; });
}

}  // namespace gpipe::cli
