#include "gpipe/interpret/throw_action_error.h"

#include <fmt/format.h>

#include <exception>

namespace gpipe::detail {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    // libtorch's errors go on with a backtrace, which `cause` still has.
    const std::string what = exception.what();
    return what.substr(0, what.find("\nException raised from "));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

void throw_action_error(int worker, const Action& action, const std::string& where) {
  const std::exception_ptr cause = std::current_exception();
  throw ActionError(fmt::format("{} of micro-batch {} on stage {}{}{} (action {}, worker {}) failed: {}",
                                name(action.kind), action.micro_batch, action.stage, where.empty() ? "" : ", ", where,
                                to_string(action), worker, message_of(cause)),
                    worker, action, cause);
}

}  // namespace gpipe::detail
