#include "cli/doctor_command.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/help.h"
#include "cli/machine.h"
#include "cli/terminal.h"
#include "gpipe/version.h"

namespace gpipe::cli {
namespace {

struct Mark {
  const char* word;
  const char* paint;  // the terminal's own colour
};

Mark mark(Finding finding) {
  switch (finding) {
    case Finding::kFact:
      return {"", ""};
    case Finding::kOk:
      return {"ok", "\x1b[32m"};
    case Finding::kWarning:
      return {"warning", "\x1b[33m"};
    case Finding::kMissing:
      return {"missing", "\x1b[31m"};
    case Finding::kWrong:
      return {"wrong", "\x1b[31m"};
    case Finding::kOptional:
      return {"optional", "\x1b[2m"};
  }
  return {"", ""};
}

// A line of several lines, the further ones under the first.
std::string indented(std::string lines) {
  for (std::size_t at = lines.find('\n'); at != std::string::npos; at = lines.find('\n', at + 1)) {
    lines.insert(at + 1, 26, ' ');
  }
  return lines;
}

std::string to_text(const Check& check, bool colour) {
  const Mark one = mark(check.finding);
  const std::string word = fmt::format("{:<8}", one.word);
  const std::string painted = colour && *one.paint != '\0' ? one.paint + word + "\x1b[0m" : word;
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

void add_doctor_command(CLI::App& app, Run& chosen) {
  CLI::App& sub = *app.add_subcommand("doctor");
  set_help(sub, {"gpipe doctor", "Say what this machine has and what it lacks for training with gpipe.",
                 "Exit code 1 if something required is missing.", "  gpipe doctor"});
  sub.callback([&chosen] { chosen = run_doctor; });
}

}  // namespace gpipe::cli
