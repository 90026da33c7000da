#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch/program_run.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/verify_runs.h"
#include "gpipe/recording/first_difference.h"
#include "gpipe/recording/likely_cause.h"
#include "gpipe/recording/recorded_run.h"
#include "gpipe/recording/verification.h"
#include "gpipe/recording/verify_request.h"
#include "gpipe/schedule/registry.h"

namespace gpipe::cli {
namespace {

using detail::Compared;
using detail::ComparedCounts;
using detail::RecordedDifference;
using detail::RecordedPipeline;
using detail::RecordedRun;
using detail::VerifyRequest;

constexpr int kProgramFailed = 3;

struct VerifyCommand {
  std::vector<std::string> program;
  VerifiedWays ways;
  int num_steps = 3;
  bool stops = false;
  bool json = false;
};

// A folder for recordings, removed with all it holds.
class RecordingFolder {
 public:
  RecordingFolder() : path_((std::filesystem::temp_directory_path() / "gpipe-verify-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      throw UsageError(fmt::format("{} cannot be made", path_), "TMPDIR names another folder for temporary files");
    }
  }
  ~RecordingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;

  const std::string& path() const { return path_; }
  // Whether the first pipeline of so many processes has recorded so many steps, and the weights behind them.
  bool has_steps(int num_steps, int num_processes) const {
    const std::string mark = fmt::format(R"({{"record":"weight","step":{},)", num_steps);
    for (int process = 0; process < num_processes; ++process) {
      std::ifstream file(path_ + "/" + detail::recording_file_name(0, process));
      std::ostringstream content;
      content << file.rdbuf();
      if (content.str().find(mark) == std::string::npos) return false;
    }
    return true;
  }

 private:
  std::string path_;
};

// The program did not come to its end.
struct FailedRun {
  std::string problem;
  std::string last_lines;
};

// The user, or somebody else, wants the command to end.
struct Interrupted {
  int signal = 0;
};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// Runs the program again and again, and puts together what that tells.
class ProgramVerifier {
 public:
  explicit ProgramVerifier(const VerifyCommand& command) : command_(command) {}

  // Throws FailedRun if the program cannot be run even as it is, or records nothing.
  Verification verify() {
    const RecordedRun written = run(as_written(command_.num_steps));
    if (written.num_steps() == 0) {
      throw FailedRun{
          "no training step of a gpipe::Pipeline was recorded: the program has to be built with this version of gpipe, "
          "and to train",
          ""};
    }
    const ProgramShape shape = shape_of(written);
    const ProgramSettings reference = reference_settings(shape, command_.num_steps);
    const std::vector<ProgramSettings> runs = list_runs(command_.ways, shape, command_.num_steps);
    const std::vector<ReplicaRuns> replicas = list_replica_runs(command_.ways, shape, command_.num_steps);
    num_runs_ = 3 + 3 * static_cast<int>(replicas.size());
    for (const ProgramSettings& settings : runs) num_runs_ += settings.not_possible.empty() ? 1 : 0;

    reference_settings_ = reference;
    result_.reference = reference.name;
    reference_ = run(reference);
    result_.findings = findings_in(reference_, reference.name);
    result_.notes = notes_in(reference_);
    ProgramSettings again = reference;
    again.name += ", again";
    if (compare(again, /*is_repeat=*/true) && compare_written(shape, written)) {
      const bool are_same = std::all_of(runs.begin(), runs.end(),
                                        [&](const auto& settings) { return compare(settings, /*is_repeat=*/false); });
      if (are_same) {
        for (const ReplicaRuns& of_count : replicas) compare_replicas(of_count);
      }
    }
    return std::move(result_);
  }

 private:
  RecordedRun run(const ProgramSettings& settings) {
    ++num_started_;
    const std::string number =
        num_runs_ == 0 ? "" : fmt::format("{} of {}: ", std::min(num_started_, num_runs_), num_runs_);
    std::fputs(fmt::format("{}{}\n", number, settings.name).c_str(), stderr);
    const RecordingFolder folder;
    VerifyRequest request = settings.request;
    request.folder = folder.path();
    ProgramCommand command;
    command.environment = to_environment(request);
    command.arguments = command_.program;
    if (settings.num_processes > 0) {
      std::vector<std::string> launch = {own_path(), "launch", "-n", std::to_string(settings.num_processes)};
      if (settings.num_replicas > 1) launch.insert(launch.end(), {"--replicas", std::to_string(settings.num_replicas)});
      launch.emplace_back("--");
      command.arguments.insert(command.arguments.begin(), launch.begin(), launch.end());
    }
    if (command_.stops) {
      command.is_enough = [&] { return folder.has_steps(request.num_steps, std::max(settings.num_processes, 1)); };
    }
    const ProgramEnd end = run_program(command);
    if (end.interrupted_by != 0) throw Interrupted{end.interrupted_by};
    if (end.exit_code != 0 && !end.was_stopped) {
      throw FailedRun{fmt::format("the program ended with exit code {}", end.exit_code), end.last_lines};
    }
    return detail::read_recorded_run(folder.path());
  }

  // The same for a run that may fail: nothing then, and the table says so.
  std::optional<RecordedRun> try_to_run(const ProgramSettings& settings) {
    try {
      return run(settings);
    } catch (const FailedRun& failed) {
      VerifiedRun verified;
      verified.name = settings.name;
      verified.outcome = VerifyOutcome::kFailed;
      verified.note = failed.problem + (failed.last_lines.empty() ? "" : ":\n" + failed.last_lines);
      result_.runs.push_back(verified);
      return std::nullopt;
    }
  }

  // The pipeline of the reference that one of another run is compared with.
  static const RecordedPipeline* counterpart(const RecordedRun& reference, const RecordedPipeline& other) {
    const RecordedPipeline* same = reference.find(other.pipeline, other.copy);
    return same != nullptr ? same : reference.find(other.pipeline, 0);
  }

  static void add(const ComparedCounts& counts, VerifiedRun& verified) {
    verified.num_losses += counts.losses;
    verified.num_crossings += counts.crossings;
    verified.num_gradients += counts.gradients;
    verified.num_buffers += counts.buffers;
    verified.num_weights += counts.weights;
  }

  struct Found {
    RecordedDifference difference;
    RecordedPipeline pipeline;
  };

  // The first difference in all pipelines, and in `verified` what was compared.
  static std::optional<Found> find_difference(const RecordedRun& reference, const RecordedRun& other,
                                              VerifiedRun& verified) {
    std::optional<Found> found;
    for (const RecordedPipeline& pipeline : other.pipelines) {
      const RecordedPipeline* expected = counterpart(reference, pipeline);
      if (expected == nullptr) continue;
      verified.num_steps += std::min(expected->num_steps(), pipeline.num_steps());
      add(count_compared(*expected, pipeline), verified);
      auto difference = first_difference(*expected, pipeline);
      if (difference && !found) found = Found{*std::move(difference), pipeline};
    }
    return found;
  }

  // Whether they are the same; notes it in the result.
  bool judge(const ProgramSettings& settings, const ProgramSettings& reference_way, const RecordedRun& reference,
             const RecordedRun& other, bool is_repeat) {
    VerifiedRun verified;
    verified.name = settings.name;
    std::optional<Found> found = find_difference(reference, other, verified);
    if (verified.num_steps == 0) {
      verified.outcome = VerifyOutcome::kFailed;
      verified.note = "no step of it was recorded";
    }
    const bool is_same = !found;
    if (!is_same) {
      verified.outcome = VerifyOutcome::kDiffers;
      result_.findings.push_back(look_closer(settings, reference_way, *std::move(found), is_repeat));
    }
    result_.runs.push_back(verified);
    return is_same;
  }

  bool compare(const ProgramSettings& settings, bool is_repeat) {
    if (!settings.not_possible.empty()) {
      VerifiedRun left_out;
      left_out.name = settings.name;
      left_out.outcome = VerifyOutcome::kNotPossible;
      left_out.note = settings.not_possible;
      result_.runs.push_back(left_out);
      return true;
    }
    const std::optional<RecordedRun> other = try_to_run(settings);
    return !other || judge(settings, reference_settings_, reference_, *other, is_repeat);
  }

  bool compare_written(const ProgramShape& shape, const RecordedRun& written) {
    ProgramSettings settings = as_written(command_.num_steps);
    settings.name += " (" + shape.description + ")";
    return judge(settings, reference_settings_, reference_, written, /*is_repeat=*/false);
  }

  // By further runs, in which the program does more than it would.
  VerifyFinding look_closer(const ProgramSettings& settings, const ProgramSettings& reference_way, Found found,
                            bool is_repeat) {
    detail::Probe probe;
    detail::SeenIn seen;
    seen.run = settings.name;
    seen.is_repeat = is_repeat;
    try {
      if (needs_arrivals(found.difference)) {
        ProgramSettings expected_way = reference_way;
        ProgramSettings closer_way = settings;
        for (ProgramSettings* way : {&expected_way, &closer_way}) {
          way->request.with_arrivals = true;
          way->name += ", with the gradients between the layers";
        }
        const RecordedRun expected = run(expected_way);
        VerifiedRun ignored;
        if (auto closer = find_difference(expected, run(closer_way), ignored)) found = *std::move(closer);
      }
      if (const std::optional<int> layer = layer_to_probe(found.difference)) {
        ProgramSettings probing = reference_way;
        probing.request.probed = detail::ProbedLayer{found.pipeline.pipeline, *layer};
        probing.name = fmt::format("{}, with {} alone", reference_way.name, found.pipeline.describe_layer(*layer));
        for (const RecordedPipeline& pipeline : run(probing).pipelines) {
          for (const detail::Recording& rank : pipeline.ranks) {
            if (rank.probes.empty() || seen.probe != nullptr) continue;
            probe = rank.probes.front();
            seen.probe = &probe;
          }
        }
      }
    } catch (const FailedRun&) {  // NOLINT(bugprone-empty-catch) then there is no closer look
    }
    return explain(found.difference, found.pipeline, seen);
  }

  // False, and a finding, if the replicas of a run do not agree with each other.
  bool compare_copies(const ProgramSettings& settings, const RecordedRun& recorded) {
    for (int pipeline = 0; pipeline < recorded.num_pipelines(); ++pipeline) {
      const std::vector<const RecordedPipeline*> copies = recorded.copies(pipeline);
      for (const RecordedPipeline* copy : copies) {
        auto finding = explain_copies(*copies.front(), *copy, settings.name);
        if (!finding) continue;
        result_.findings.push_back(*std::move(finding));
        VerifiedRun verified;
        verified.name = settings.name + ", among each other";
        verified.outcome = VerifyOutcome::kDiffers;
        result_.runs.push_back(verified);
        return false;
      }
    }
    return true;
  }

  void compare_replicas(const ReplicaRuns& runs) {
    const std::optional<RecordedRun> one_stage = try_to_run(runs.of_one_stage);
    if (!one_stage || !compare_copies(runs.of_one_stage, *one_stage)) return;
    if (runs.of_two_stages.not_possible.empty()) {
      const std::optional<RecordedRun> two_stages = try_to_run(runs.of_two_stages);
      const bool are_same = two_stages && compare_copies(runs.of_two_stages, *two_stages) &&
                            judge(runs.of_two_stages, runs.of_one_stage, *one_stage, *two_stages, false);
      if (!are_same) return;
    }
    compare_with_one(runs, *one_stage);
  }

  // Replicas against one pipeline with as many micro-batches: what layers return in the first step has the same bytes,
  // and sums differ by rounding.
  void compare_with_one(const ReplicaRuns& runs, const RecordedRun& replicas) {
    const std::optional<RecordedRun> alone = try_to_run(runs.alone);
    if (!alone) return;
    constexpr double kRounding = 1e-3;
    VerifiedRun verified;
    verified.name = fmt::format("{}, against one pipeline, up to rounding", runs.of_one_stage.name);
    for (const RecordedPipeline& pipeline : replicas.pipelines) {
      const RecordedPipeline* expected = alone->find(pipeline.pipeline, 0);
      if (expected == nullptr || pipeline.header().world_size == 1) continue;
      if (!have_same_inputs(*expected, pipeline)) {
        result_.notes.push_back(
            fmt::format("{} replicas do not train on the micro-batches of the whole batch, and were not compared with "
                        "one pipeline: "
                        "gpipe::replica_share gives each its rows, and the batch has to divide evenly",
                        runs.num_replicas));
        return;
      }
      auto difference = first_difference(*expected, pipeline, Compared::kFirstForward);
      if (!difference) difference = first_distant(*expected, pipeline, kRounding);
      verified.num_steps += 1;
      add(count_compared(*expected, pipeline), verified);
      if (!difference) continue;
      verified.outcome = VerifyOutcome::kDiffers;
      VerifyFinding finding = explain(*difference, pipeline, {verified.name, false, nullptr});
      if (finding.cause == LikelyCause::kOrderOfAdditions) finding.cause = LikelyCause::kUnknown;
      finding.detail = "the replicas' sum is further from that of one pipeline than rounding goes";
      result_.findings.push_back(finding);
      break;
    }
    if (verified.num_steps > 0) result_.runs.push_back(verified);
  }

  const VerifyCommand& command_;
  int num_started_ = 0;
  int num_runs_ = 0;  // 0: not known yet
  ProgramSettings reference_settings_;
  RecordedRun reference_;
  Verification result_;
};

bool has_failed_runs(const Verification& verification) {
  return std::any_of(verification.runs.begin(), verification.runs.end(),
                     [](const VerifiedRun& run) { return run.outcome == VerifyOutcome::kFailed; });
}

int run_verify(const VerifyCommand& command) {
  if (command.program.empty()) {
    throw UsageError("which program? There is none after '--'", "for example: gpipe verify -- ./program arguments");
  }
  try {
    const Verification verification = ProgramVerifier(command).verify();
    print(command.json ? to_json(verification) : to_text(verification));
    if (verification.is_verified()) return kDone;
    return verification.findings.empty() && has_failed_runs(verification) ? kProgramFailed : kNegativeAnswer;
  } catch (const FailedRun& failed) {
    print_error(failed.problem, failed.last_lines.empty() ? "" : "its last lines:\n" + failed.last_lines);
    return kProgramFailed;
  } catch (const Interrupted& interrupted) {
    return 128 + interrupted.signal;
  } catch (const LaunchError& error) {
    print_error(error.what());
    return error.exit_code();
  }
}

std::string parse_schedule_name(std::string_view word) { return find_schedule(word, training_schedule_names()).name; }

Recompute parse_mode(std::string_view word) {
  const Recompute mode = parse_recompute(word);
  if (mode == Recompute::kAuto) {
    throw InvalidArgument("'auto' takes times into account, and they are others each time; name the modes");
  }
  return mode;
}

// As many as a launch can start on a host.
constexpr int kMostRanks = 1024;

std::vector<int> parse_counts(std::string_view words) { return parse_list(words, parse_count_to<kMostRanks>); }
std::vector<std::string> parse_schedules(std::string_view words) { return parse_list(words, parse_schedule_name); }
std::vector<Recompute> parse_modes(std::string_view words) { return parse_list(words, parse_mode); }

// "none", or numbers.
std::vector<int> parse_counts_or_none(std::string_view words) {
  return words == "none" ? std::vector<int>() : parse_counts(words);
}

std::vector<int> parse_replicas(std::string_view words) {
  const std::vector<int> counts = parse_counts_or_none(words);
  for (const int count : counts) {
    if (count < 2)
      throw InvalidArgument(fmt::format("'{}' is no number of replicas to compare; give 2 or more", count));
  }
  return counts;
}

}  // namespace

void add_verify_command(CLI::App& app, std::vector<std::string> program, Run& chosen) {
  const auto command = std::make_shared<VerifyCommand>();
  command->program = std::move(program);
  CLI::App& sub = *app.add_subcommand("verify");
  const OptionGroup ways{sub, "What is combined"};
  ways.add("K,..", "--stages", command->ways.stages, parse_counts, "Stages on threads [1,2,4]");
  ways.add("NAME,..", "--schedules", command->ways.schedules, parse_schedules, "Their schedules [gpipe,1f1b,zb-v]");
  ways.add("MODE,..", "--recompute", command->ways.recompute, parse_modes, "always, except-last, never [never,always]");
  ways.add("K,..", "--processes", command->ways.processes, parse_counts_or_none,
           "Stages over as many processes, with the first mode of --recompute; none [2]");
  ways.add("R,..", "--replicas", command->ways.replicas, parse_replicas,
           "Replicas of one and of two stages; for programs that give each its share of the batch [none]");
  const OptionGroup recording{sub, "The program"};
  recording.add("N", "--steps", command->num_steps, parse_count, "Training steps of each pipeline to compare [3]");
  recording.add_flag("--stop", command->stops, "End the program once its first pipeline has taken them");
  const OptionGroup output{sub, "Output"};
  output.add_flag("--json", command->json, "Print the result as JSON");
  set_help(
      sub,
      {"gpipe verify [options] -- PROGRAM [arguments]", "Prove that stages and schedules change no bit of a training.",
       "The program is run unchanged, again and again: each time its pipelines get other stages, schedules and "
       "recompute, and record hashes of what layers return, of losses, gradients, buffers and weights. All are "
       "compared "
       "with one stage. What differs first is named, with where it was made and the likely cause. What the program "
       "writes, it writes each time. Exit codes: 0 verified, 1 it differs, 2 bad usage, 3 the program failed.",
       "  gpipe verify -- ./train --steps 3\n"
       "  gpipe verify --stages 2 --schedules 1f1b --processes none -- ./train\n"
       "  gpipe verify --replicas 2 --steps 1 --stop -- ./train\n"
       "  gpipe verify -- gpipe train lm --steps 3"});
  sub.callback([&sub, &chosen, command] {
    const std::vector<std::string> rest = sub.remaining();
    if (command->program.empty() && !rest.empty() && rest.front()[0] != '-') {
      throw UsageError(fmt::format("'{}' is not an option of 'gpipe verify'", rest.front()),
                       fmt::format("put '--' before the program: gpipe verify -- {}", fmt::join(rest, " ")));
    }
    chosen = [command] { return run_verify(*command); };
  });
}

}  // namespace gpipe::cli
