#include "cli/failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>
#include <utility>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/terminal.h"
#include "gpipe/launch/world.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::cli {
namespace {

// What the library calls a thing, and the option for it.
constexpr std::pair<std::string_view, const char*> kOptionNames[] = {
    {"num_stages", "--stages"},
    {"num_micro_batches", "--micro-batches"},
    {"chunks_per_worker", "--chunks"},
    {"chunks", "--chunks"},
    {"balance", "--balance"},
    {"threads_per_stage", "--threads-per-stage"},
    {"memory_limit_bytes", "--memory-limit"},
    {"mini_batch_samples", "--mini-batch"},
    {"optimizer_slots", "--optimizer-slots"},
    {"warmup_steps", "--warmup"},
    {"total_steps", "--steps"},
    {"vocabulary_size", "--vocabulary"},
};

bool has_option(const CLI::App& app, const char* option) {
  for (const CLI::App* command = &named_command(app); command != nullptr; command = command->get_parent()) {
    if (command->get_option_no_throw(option) != nullptr) return true;
  }
  return false;
}

// A letter that makes a longer name of what it stands beside, or a quote.
bool joins(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("_-'\"").find(letter) != std::string_view::npos;
}

// "balance" and "chunks" are words of plain sentences, too; where they are names, they say what they are or have.
bool is_name(std::string_view word, std::string_view behind) {
  if (word.find('_') != std::string_view::npos) return true;
  for (const std::string_view verb : {" is ", " has ", " gives ", " adds "}) {
    if (behind.substr(0, verb.size()) == verb) return true;
  }
  return false;
}

std::string replaced(const std::string& text, std::string_view word, const char* option) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at; (at = text.find(word, from)) != std::string::npos;) {
    const std::size_t end = at + word.size();
    const bool is_whole = (at == 0 || !joins(text[at - 1])) && (end == text.size() || !joins(text[end]));
    out.append(text, from, at - from);
    out += is_whole && is_name(word, std::string_view(text).substr(end)) ? std::string(option) : std::string(word);
    from = end;
  }
  return out.append(text, from);
}

bool is_first_on_this_host() {
  try {
    return read_world().local_rank == 0;
  } catch (const Error&) {  // variables that make no sense: nobody knows
    return true;
  }
}

// Once for all ranks that were started alike.
int report(const std::string& message, const std::string& hint, ExitCode exit_code) {
  if (!is_told_by_the_first_rank()) print_error(message, hint);
  return exit_code;
}

constexpr const char* kReport = "this is a defect of gpipe: please report it with the command that led here";

// CLI11's words for a file that it cannot read, for a value too few or too many, as "--stages: 1 required K missing",
// and for two options of which one says what the other does, as "--stages excludes --plan", in ours.
std::string describe(const CLI::ParseError& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr) {
    const std::string path = what.substr(0, what.rfind(" was not readable"));
    const int reason = access(path.c_str(), R_OK) == 0 ? EISDIR : errno;
    return fmt::format("cannot read '{}': {}", path, std::strerror(reason));
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    const std::string_view verb = " excludes ";
    const std::size_t at = what.find(verb);
    return fmt::format("{} and {} do not go together", what.substr(0, at), what.substr(at + verb.size()));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return what;
  const std::string option = what.substr(0, what.find(':'));
  const bool is_missing = what.find("missing") != std::string::npos;
  return is_missing ? fmt::format("{} needs a value", option) : fmt::format("{} is given more than once", option);
}

// Help and version are thrown by CLI11 as well.
int print_parse_result(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr) {
    print(app.help());
  } else if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
    print(fmt::format("{}\n", error.what()));
  } else if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    return report_usage(describe(error), "leave one of them out; " + see_help(app));
  } else {
    return report_usage(describe(error), see_help(app));
  }
  flush_output();
  return kDone;
}

std::string describe_remedy(const InfeasibleError& error, const CLI::App& app) {
  const CLI::Option* const recompute = named_command(app).get_option_no_throw("--recompute");
  const bool may_recompute = recompute != nullptr && recompute->count() > 0 && recompute->results().back() == "auto";
  const CLI::Option* const workers = named_command(app).get_option_no_throw("--workers");
  const bool has_workers = workers != nullptr && workers->count() > 0;
  return fmt::format("try {}{}{}",
                     error.smallest_num_stages() == 0 ? "" : fmt::format("--stages {}, ", error.smallest_num_stages()),
                     has_workers ? "more memory for its worker" : "a larger --memory-limit",
                     may_recompute ? " or smaller micro-batches"
                                   : fmt::format(", smaller micro-batches or --recompute {}",
                                                 named_command(app).get_name() == "simulate" ? "always" : "auto"));
}

int rethrow(const CLI::App& app) {
  try {
    throw;
  } catch (const OutputError& error) {
    return report(error.what(), error.hint(), kNegativeAnswer);
  } catch (const UsageError& error) {
    return report_usage(with_option_names(error.what(), app), error.hint());
  } catch (const ScheduleError& error) {
    return report(error.what(), "'gpipe check' explains what a schedule has to fulfil", kNegativeAnswer);
  } catch (const InfeasibleError& error) {
    return report(with_option_names(error.what(), app), describe_remedy(error, app), kNegativeAnswer);
  } catch (const Error& error) {
    return report_usage(with_option_names(error.what(), app), see_help(app));
  } catch (const CLI::ParseError& error) {
    return print_parse_result(app, error);
  } catch (const std::bad_alloc&) {
    print_error("out of memory", "fewer stages or micro-batches need less of it");
  } catch (const std::exception& error) {
    print_error(fmt::format("internal error: {}", error.what()), kReport);
  } catch (...) {
    print_error("internal error of an unknown kind", kReport);
  }
  return kBadUsage;
}

}  // namespace

bool is_told_by_the_first_rank() {
  constexpr timespec kGrace = {5, 0};
  if (is_first_on_this_host()) return false;
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  if (sigprocmask(SIG_BLOCK, &end, nullptr) != 0) return false;
  return sigtimedwait(&end, nullptr, &kGrace) > 0;
}

int report_usage(const std::string& message, const std::string& hint) { return report(message, hint, kBadUsage); }

std::string with_option_names(const std::string& message, const CLI::App& app) {
  std::string text = message;
  for (const auto& [in_library, option] : kOptionNames) {
    if (has_option(app, option)) text = replaced(text, in_library, option);
  }
  return text;
}

int report_failure(const CLI::App& app) noexcept {
  try {
    return rethrow(app);
  } catch (const std::exception& error) {  // standard output refused the help, or no memory is left for the message
    std::fprintf(stderr, "gpipe: %s\n", error.what());
    return kBadUsage;
  }
}

}  // namespace gpipe::cli
