// FailureReport: what a rank tells the others, through the store, about why its part in the world has ended.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "gpipe/error.h"

namespace gpipe::detail {

// Note [Who is to blame]
// ~~~~~~~~~~~~~~~~~~~~~~
// When rank 1 stops, rank 2 waits for it in vain, rank 3 for rank 2, and so on: each has somebody else to complain
// about, and who gives up first resets its connections, which the others then notice. So whoever gives up first says in
// the store whom it has waited for, and resets its connections after that. Then it looks what the one it waited for has
// said, and follows the trail to a rank that has said nothing: that one is to blame; or to one that says it has failed
// by itself. A rank that was silent may be about to speak, because it has waited a little less, so that one is given
// some time.
struct FailureReport {
  int blamed = -1;  // the rank that is silent or lost; -1: it has failed by itself
  bool silent = false;
  std::string flow;      // that it was waited for with
  int micro_batch = -1;  // of it
  std::string text;
};

class WireRecord;

WireRecord to_record(const FailureReport& report);
// Throws InvalidArgument if it is none, or blames a rank beyond `num_ranks`.
FailureReport read_failure_report(const WireRecord& record, int num_ranks);

// What the error says.
FailureReport failure_report_of(const std::exception_ptr& error, bool silent);

// Follows the trail that begins with the own report, about `error`, and gives the error to throw instead: about the
// rank that is to blame, or the same one. `ask` gives a rank's report, if it has one, and waits for it if told to;
// `place_of` gives the rank's place.
std::exception_ptr blame(const std::exception_ptr& error, const FailureReport& own, int own_rank,
                         const std::function<std::optional<FailureReport>(int rank, bool wait)>& ask,
                         const std::function<PeerPlace(int rank)>& place_of);

}  // namespace gpipe::detail
