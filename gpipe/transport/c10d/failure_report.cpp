#include "gpipe/transport/c10d/failure_report.h"

#include <fmt/format.h>

#include <set>

#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

WireRecord to_record(const FailureReport& report) {
  WireRecord record;
  record.add("blamed", report.blamed);
  record.add("silent", report.silent);
  record.add("flow", report.flow);
  record.add("micro_batch", report.micro_batch);
  record.add("text", report.text);
  return record;
}

FailureReport read_failure_report(const WireRecord& record, int num_ranks) {
  WireReader reader(record, "this is not a failure report");
  FailureReport report;
  report.blamed = reader.integer<int>("blamed", -1, num_ranks - 1);
  report.silent = reader.flag("silent");
  report.flow = reader.text("flow");
  report.micro_batch = reader.integer<int>("micro_batch", -1);
  report.text = reader.text("text");
  reader.finish();
  return report;
}

FailureReport failure_report_of(const std::exception_ptr& error, bool silent) {
  constexpr std::size_t kMostLetters = 4000;
  FailureReport report;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& peer) {
    report.blamed = peer.place().rank;
    report.silent = silent;
    report.flow = peer.place().flow;
    report.micro_batch = peer.place().micro_batch;
    report.text = peer.reason();
  } catch (const std::exception& exception) {
    report.text = exception.what();
  } catch (...) {
    report.text = "an exception that is not a std::exception";
  }
  report.text = report.text.substr(0, kMostLetters);
  return report;
}

std::exception_ptr blame(const std::exception_ptr& error, const FailureReport& own, int own_rank,
                         const std::function<std::optional<FailureReport>(int rank, bool wait)>& ask,
                         const std::function<PeerPlace(int rank)>& place_of) {
  if (own.blamed < 0) return error;
  FailureReport last = own;
  int witness = own_rank;  // that `last` is of
  std::set<int> heard = {own_rank};
  const auto place_for = [&](int rank) {
    PeerPlace place = place_of(rank);
    place.flow = last.flow;
    place.micro_batch = last.micro_batch;
    return place;
  };
  while (heard.insert(last.blamed).second) {
    const int rank = last.blamed;
    const std::optional<FailureReport> next = ask(rank, last.silent);
    if (!next) break;
    if (next->blamed < 0) {
      return std::make_exception_ptr(PeerError(place_for(rank), fmt::format("it has failed: {}", next->text)));
    }
    last = *next;
    witness = rank;
  }
  if (last.blamed == own_rank) {
    return std::make_exception_ptr(
        PeerError(place_for(witness), fmt::format("it has given up on this rank: {}", last.text)));
  }
  if (witness == own_rank) return error;
  return std::make_exception_ptr(
      PeerError(place_for(last.blamed), fmt::format("{} (rank {} says so)", last.text, witness)));
}

}  // namespace gpipe::detail
