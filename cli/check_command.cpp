#include "cli/check_command.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/certificate_report.h"
#include "cli/help.h"
#include "cli/input_file.h"
#include "cli/option.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

struct CheckCommand {
  std::string file;
  std::vector<std::string> skips;
  std::vector<std::string> ties;
  StageBytes bytes;
  std::optional<std::int64_t> memory_limit_bytes;
  bool canonical = false;
  bool json = false;
};

Routes parse_routes(const CheckCommand& command) {
  Routes routes;
  const auto parse = [](const char* option, const std::string& word) {
    try {
      return parse_pair(word);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", option, error.what()));
    }
  };
  for (const std::string& word : command.skips) {
    const auto [from, to] = parse("--skip", word);
    routes.skips.push_back({from, to});
  }
  for (const std::string& word : command.ties) {
    const auto [owner, stage] = parse("--tie", word);
    routes.ties.push_back({owner, stage});
  }
  return routes;
}

ValidateOptions make_options(const CheckCommand& command, const Schedule& schedule) {
  ValidateOptions options;
  options.routes = parse_routes(command);
  options.memory_limit_bytes = command.memory_limit_bytes;
  const StageBytes& bytes = command.bytes;
  if (bytes.static_bytes > 0 || bytes.activation_bytes > 0 || bytes.input_bytes > 0) {
    options.stages.assign(static_cast<std::size_t>(schedule.num_stages), bytes);
  } else if (command.memory_limit_bytes) {
    throw UsageError("--memory-limit needs to know what a stage holds",
                     "add --activation-bytes, --static-bytes or --input-bytes");
  }
  return options;
}

int refuse(const CheckCommand& command, const Schedule& schedule, const ScheduleError& error) {
  print(command.json ? refusal_json(schedule, error) : fmt::format("{}\n", printable(error.what())));
  flush_output();
  print_error(fmt::format("{} is refused: {}", input_name(command.file), name(error.rule())));
  return kNegativeAnswer;
}

int run_check(const CheckCommand& command) {
  if (command.file.empty()) {
    throw UsageError("which schedule? No FILE is given", "name a file, or '-' for standard input");
  }
  const Schedule schedule = read_schedule(command.file);
  const ValidateOptions options = make_options(command, schedule);
  try {
    const Certificate certificate = validate(schedule, options);
    print(command.json ? certificate_json(schedule, certificate) : certificate_report(schedule, certificate));
    if (!command.canonical || certificate.canonical) return kDone;
    flush_output();
    print_error(fmt::format("{} is not canonical: {}", input_name(command.file), certificate.non_canonical_because));
    return kNegativeAnswer;
  } catch (const ScheduleError& error) {
    return refuse(command, schedule, error);
  }
}

void add_model_options(CLI::App& app, CheckCommand& command) {
  const char* model = "Model";
  app.add_option("--skip", command.skips, "A skip connection between two stages; may be repeated")
      ->type_name("FROM:TO")
      ->allow_extra_args(false)
      ->group(model);
  app.add_option("--tie", command.ties, "A weight of stage OWNER that STAGE uses too; may be repeated")
      ->type_name("OWNER:STAGE")
      ->allow_extra_args(false)
      ->group(model);
  const char* memory = "Memory";
  add_value(app, "--memory-limit", command.memory_limit_bytes, parse_bytes, "Refuse if a worker could hold more")
      ->type_name("SIZE")
      ->group(memory);
  add_value(app, "--static-bytes", command.bytes.static_bytes, parse_bytes,
            "Weights, gradients and optimizer state of each stage [0]")
      ->type_name("SIZE")
      ->group(memory);
  add_value(app, "--activation-bytes", command.bytes.activation_bytes, parse_bytes,
            "Activations of a micro-batch in each stage [0]")
      ->type_name("SIZE")
      ->group(memory);
  add_value(app, "--input-bytes", command.bytes.input_bytes, parse_bytes,
            "Input of a micro-batch to each stage, kept for recompute [0]")
      ->type_name("SIZE")
      ->group(memory);
}

}  // namespace

void add_check_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<CheckCommand>();
  CLI::App& sub = *app.add_subcommand("check");
  sub.add_option("FILE", command->file, "Text or CSV, told apart by content; '-' reads standard input");
  add_model_options(sub, *command);
  sub.add_flag("--canonical", command->canonical,
               "Exit with 1 unless every stage accumulates gradients in "
               "ascending micro-batch order")
      ->group("Output");
  sub.add_flag("--json", command->json, "Print one JSON object")->group("Output");
  set_help(sub, {"gpipe check FILE|- [options]", "Prove that a schedule ends whatever the timing, or say why not.",
                 "Exit code 0 and the certificate, or 1 and the counter-example.",
                 "  gpipe check schedule.txt\n"
                 "  gpipe schedule zb-v --stages 4 --micro-batches 8 --format csv | gpipe check -\n"
                 "  gpipe check unet.txt --skip 0:3 --skip 1:2\n"
                 "  gpipe check schedule.txt --memory-limit 2GiB --activation-bytes 100MiB"});
  sub.callback([&chosen, command] { chosen = [command] { return run_check(*command); }; });
}

}  // namespace gpipe::cli
