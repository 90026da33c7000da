#include "gpipe/transport/c10d/peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "gpipe/launch/restart.h"
#include "gpipe/os/blocked_signal.h"

namespace gpipe::detail {

Peers::Peers(World world) : world_(std::move(world)) {
  if (world_.size == 1) return;
  const CarrierKind carrier = wanted_carrier();
  meeting_ = std::make_unique<Meeting>(world_);
  compare({{"GPIPE_CARRIER", name(carrier)}});
  connect_gloo();
  header_carrier_ = make_carrier(CarrierKind::kGloo, world_, *group_);
  if (carrier != CarrierKind::kGloo) byte_carrier_ = make_carrier(carrier, world_, *group_);
  if (world_.rank == 0) report_meeting();
}

Peers::~Peers() {
  if (process_.is_here()) return;
  // Their threads exist in the parent only, and to close a connection properly would end it for the parent, too.
  static_cast<void>(meeting_.release());
  static_cast<void>(header_carrier_.release());
  static_cast<void>(byte_carrier_.release());
  static_cast<void>(group_.release());
  static_cast<void>(new std::shared_ptr<ProvenDevice>(std::move(device_)));
}

void Peers::connect_gloo() {
  const BlockedSignal scope(SIGPIPE);  // Gloo and c10d write without keeping it away, also in threads of theirs
  device_ = ProvenDevice::make({meeting_->own_address(), world_.secret, world_.timeout_seconds});
  auto options = c10d::ProcessGroupGloo::Options::create(
      std::chrono::milliseconds(static_cast<long long>(world_.timeout_seconds * 1000)));
  options->devices = {device_};
  options->threads = 1;
  try {
    device_->keep_errors([&] {
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(meeting_->store(), world_.rank, world_.size, options);
    });
  } catch (const PeerError& error) {
    throw PeerError(
        place_of(error.place().rank),
        fmt::format("it did not connect to rank {} at {} within {} s; can the hosts reach each other by the "
                    "interface that GPIPE_INTERFACE names?",
                    world_.rank, meeting_->own_address(), world_.timeout_seconds));
  }
}

void Peers::compare(const Fingerprint& fingerprint) {
  check();
  if (world_.size == 1) return;
  std::vector<Fingerprint> of_rank;
  for (const WireRecord& record : meeting_->gather("fingerprint", to_record(fingerprint))) {
    of_rank.push_back(read_fingerprint(record));
  }
  compare_fingerprints(of_rank);
}

void Peers::leave_together(const std::function<void(const PeerError&)>& on_late) {
  check();
  if (world_.size == 1) return;
  const double seconds = meeting_->grace_seconds();
  meeting_->gather("leave", {}, [&](int rank) {
    if (!on_late) return;
    on_late(PeerError(place_of(rank), fmt::format("it has not come to leave for {} s; this rank waits for it for {} s",
                                                  seconds, world_.timeout_seconds)));
  });
  carrier().leave(/*together=*/true);
}

int Peers::reserve_flows(std::int64_t count, FlowScope scope) {
  constexpr int kFirstOfWorld = 1 << 19;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_flows_[scope] + count > kFirstOfWorld) throw Error("the peers have had more than 2^19 flows; make new ones");
  const int first = num_flows_[scope] + (scope == FlowScope::kWorld ? kFirstOfWorld : 0);
  num_flows_[scope] += static_cast<int>(count);
  return first;
}

void Peers::fail(std::exception_ptr error, bool silent) {
  end_.begin();
  if (meeting_ != nullptr) {
    carrier().leave(/*together=*/false);
    const FailureReport own = failure_report_of(error, silent);
    meeting_->report(own);
    device_->close();
    error = meeting_->find_culprit(error, own);
  }
  end_.set(error);
  if (meeting_ != nullptr) meeting_->let_others_read(error);
  std::rethrow_exception(error);
}

void Peers::check() const {
  if (!process_.is_here()) {
    throw CallError(
        fmt::format("the peers of rank {} were connected by process {}, from which this one, {}, was forked; only that "
                    "one can talk to them",
                    world_.rank, process_.number(), getpid()));
  }
  end_.check();
}

}  // namespace gpipe::detail
