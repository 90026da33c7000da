// ActionError: what a stage threw, with where it was.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/schedule/action.h"

namespace gpipe {

class ActionError : public Error {
 public:
  ActionError(const std::string& what, int worker, const Action& action, std::exception_ptr cause)
      : Error(what), worker_(worker), action_(action), cause_(std::move(cause)) {}
  int worker() const { return worker_; }
  const Action& action() const { return action_; }
  // The exception the layer threw, of its own type.
  std::exception_ptr cause() const { return cause_; }
  // Throws that exception if it is a `Cause`, and returns otherwise.
  template <typename Cause>
  void rethrow_if() const {
    try {
      std::rethrow_exception(cause_);
    } catch (const Cause&) {
      throw;
    } catch (...) {  // NOLINT(bugprone-empty-catch) this error says it
    }
  }

 private:
  int worker_;
  Action action_;
  std::exception_ptr cause_;
};

}  // namespace gpipe
