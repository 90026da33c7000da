#include "cli/failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "cli/command.h"
#include "cli/one_voice.h"
#include "cli/option_names.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::cli {

int report_usage(const std::string& message, const std::string& hint) {
  if (!is_told_by_the_first_rank()) print_error(message, hint);
  return kBadUsage;
}

namespace {

constexpr const char* kReport = "this is a defect of gpipe: please report it with the command that led here";

// CLI11's words for a file that it cannot read, and for a value too few or too many, as "--stages: 1 required K
// missing", in ours.
std::string describe(const CLI::ParseError& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr) {
    const std::string path = what.substr(0, what.rfind(" was not readable"));
    const int reason = access(path.c_str(), R_OK) == 0 ? EISDIR : errno;
    return fmt::format("cannot read '{}': {}", path, std::strerror(reason));
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
  } else {
    return report_usage(describe(error), see_help(app));
  }
  flush_output();
  return kDone;
}

std::string describe_remedy(const InfeasibleError& error) {
  return fmt::format(
      "try {}a larger --memory-limit, smaller micro-batches, or --recompute auto if recompute is not left open",
      error.smallest_num_stages() == 0 ? "" : fmt::format("--stages {}, ", error.smallest_num_stages()));
}

int rethrow(const CLI::App& app) {
  try {
    throw;
  } catch (const OutputError& error) {
    print_error(error.what(), error.hint());
    return kNegativeAnswer;
  } catch (const UsageError& error) {
    return report_usage(with_option_names(error.what(), app), error.hint());
  } catch (const ScheduleError& error) {
    print_error(error.what(), "'gpipe check' explains what a schedule has to fulfil");
    return kNegativeAnswer;
  } catch (const InfeasibleError& error) {
    print_error(with_option_names(error.what(), app), describe_remedy(error));
    return kNegativeAnswer;
  } catch (const InvalidArgument& error) {
    return report_usage(with_option_names(error.what(), app), see_help(app));
  } catch (const Error& error) {
    print_error(with_option_names(error.what(), app), see_help(app));
    return kBadUsage;
  } catch (const CLI::ParseError& error) {
    return print_parse_result(app, error);
  } catch (const std::bad_alloc&) {
    print_error("out of memory", "fewer stages or micro-batches need less of it");
    return kBadUsage;
  } catch (const std::exception& error) {
    print_error(fmt::format("internal error: {}", error.what()), kReport);
    return kBadUsage;
  } catch (...) {
    print_error("internal error of an unknown kind", kReport);
    return kBadUsage;
  }
}

}  // namespace

int report_failure(const CLI::App& app) noexcept {
  try {
    return rethrow(app);
  } catch (const std::exception& error) {  // standard output refused the help, or no memory is left for the message
    std::fprintf(stderr, "gpipe: %s\n", error.what());
    return kBadUsage;
  }
}

}  // namespace gpipe::cli
