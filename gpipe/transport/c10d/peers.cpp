#include "gpipe/transport/c10d/peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "gpipe/launch/restart.h"
#include "gpipe/os/blocked_signal.h"
#include "gpipe/os/network.h"
#include "gpipe/transport/c10d/handshake.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

void check_secret(const World& world, const std::string& address) {
  if (!world.secret.empty() || is_loopback_number(address)) return;
  throw EnvironmentError(
      fmt::format("GPIPE_SECRET is missing: the ranks meet at {}, where others could join; set the same secret on all "
                  "ranks, such as that of 'openssl rand -hex 32'",
                  address),
      "GPIPE_SECRET");
}

}  // namespace

Peers::Peers(World world)
    : world_(std::move(world)),
      carrier_kind_(world_.size == 1 ? CarrierKind::kGloo : wanted_carrier()),
      hosts_(static_cast<std::size_t>(world_.size)) {
  if (world_.size == 1) return;
  connect();
  if (world_.rank == 0) report_meeting();
}

Peers::~Peers() {
  if (process_.is_here()) return;
  // Their threads exist in the parent only, and to close a connection properly would end it for the parent, too.
  static_cast<void>(server_.release());
  static_cast<void>(header_carrier_.release());
  static_cast<void>(byte_carrier_.release());
  static_cast<void>(group_.release());
  static_cast<void>(store_.release());
  static_cast<void>(new std::shared_ptr<ProvenDevice>(std::move(device_)));
}

// Numeric. Rank 0 takes its interface's, because its own name may lead it to the loopback.
std::string Peers::meeting_address() const {
  const bool is_own = world_.rank == 0 && !world_.network_interface.empty();
  std::string address = is_own ? interface_address(world_.network_interface) : resolve(world_.master_address);
  if (world_.rank == 0 && world_.local_size < world_.size && is_loopback_number(address)) {
    throw HandshakeError(fmt::format(
        "the address where the ranks are to meet, '{}', is the loopback here ({}), which other hosts cannot "
        "reach; name the network interface in GPIPE_INTERFACE, or the address in GPIPE_MASTER_ADDR",
        world_.master_address, address));
  }
  return address;
}

void Peers::connect() {
  SocketName place{meeting_address(), world_.master_port};
  check_secret(world_, place.address);
  if (!world_.network_interface.empty()) {
    own_address_ = interface_address(world_.network_interface);
    check_secret(world_, own_address_);
  }
  const Deadline deadline = deadline_in(world_.timeout_seconds);
  if (world_.rank == 0) {
    std::set<int> expected;
    for (int rank = 0; rank < world_.size; ++rank) expected.insert(rank);
    server_ = std::make_unique<StoreServer>(place.address, place.port,
                                            ListenerTerms{world_.secret, Purpose::kStore, 0, world_.size, expected});
    place.port = server_->port();
  }
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(world_.rank);
  hello.size = static_cast<std::uint32_t>(world_.size);
  FileDescriptor connection = join(place, world_.secret, hello, deadline);
  if (!connection.is_open()) {
    throw PeerError(place_of(0),
                    fmt::format("cannot be reached at {}, port {}, for {} s; is it running, and is the port "
                                "open to this host?",
                                place.address, place.port, world_.timeout_seconds));
  }
  // By the interface that leads to rank 0, if none is named.
  if (own_address_.empty()) own_address_ = name_of(connection.get()).address;
  store_ = c10::make_intrusive<ProvenStore>(std::move(connection), to_milliseconds(world_.timeout_seconds),
                                            world_.master_address);
  meet();
  compare({{"GPIPE_CARRIER", name(carrier_kind_)}});
  connect_gloo();
  connect_carrier();
}

void Peers::connect_carrier() {
  header_carrier_ = make_gloo_carrier(*group_);
  if (carrier_kind_ != CarrierKind::kGloo) byte_carrier_ = make_carrier(carrier_kind_, world_, *group_);
}

void Peers::connect_gloo() {
  const BlockedSignal scope(SIGPIPE);  // Gloo and c10d write without keeping it away, also in threads of theirs
  device_ = ProvenDevice::make({own_address_, world_.secret, world_.timeout_seconds});
  auto options = c10d::ProcessGroupGloo::Options::create(to_milliseconds(world_.timeout_seconds));
  options->devices = {device_};
  options->threads = 1;
  try {
    device_->keep_errors(
        [&] { group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, world_.rank, world_.size, options); });
  } catch (const PeerError& error) {
    throw PeerError(
        place_of(error.place().rank),
        fmt::format("it did not connect to rank {} at {} within {} s; can the hosts reach each other by the "
                    "interface that GPIPE_INTERFACE names?",
                    world_.rank, own_address_, world_.timeout_seconds));
  }
}

// So that a rank that does not come is known by its number, and all know each other's hosts.
void Peers::meet() {
  detail::WireRecord own;
  own.add("host", world_.host);
  std::vector<std::string> hosts;
  for (const detail::WireRecord& record : gather("host", own)) {
    detail::WireReader reader(record, "this is not a rank's host");
    hosts.push_back(reader.text("host"));
    reader.finish();
  }
  hosts_ = std::move(hosts);
}

std::vector<detail::WireRecord> Peers::gather(const std::string& name, const detail::WireRecord& own) {
  const std::string prefix = fmt::format("gpipe/{}/{}/", num_gathered_++, name);
  store_->set(prefix + std::to_string(world_.rank), to_bytes(encode_text(own)));
  const Deadline deadline = deadline_in(world_.timeout_seconds);
  std::vector<std::string> texts(static_cast<std::size_t>(world_.size));
  for (int rank = 0; rank < world_.size; ++rank) {
    std::chrono::microseconds pause{200};
    while (!store_->find(prefix + std::to_string(rank), texts[static_cast<std::size_t>(rank)])) {
      if (const auto report = failure_report_of_rank(rank)) {
        throw PeerError(place_of(rank), fmt::format("it has failed: {}", report->text));
      }
      if (milliseconds_until(deadline) == 0) {
        std::string what = fmt::format("it has not come within {} s", world_.timeout_seconds);
        const std::string refusals = server_ ? server_->refusals() : "";
        if (!refusals.empty()) what += fmt::format(" ({})", refusals);
        throw PeerError(place_of(rank), what);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(10'000));
    }
  }
  // Rank 0 has the store: it stays until the others have seen everything.
  const int num_seen = static_cast<int>(store_->add(prefix + "seen", 1));
  for (int seen = num_seen; world_.rank == 0 && seen < world_.size && milliseconds_until(deadline) > 0;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = static_cast<int>(store_->add(prefix + "seen", 0));
  }
  std::vector<detail::WireRecord> records;
  for (const std::string& text : texts) records.push_back(detail::decode_text(text));
  return records;
}

PeerPlace Peers::place_of(int rank) const {
  return {rank, hosts_[static_cast<std::size_t>(rank)], rank % world_.num_stages(), "", -1};
}

void Peers::compare(const Fingerprint& fingerprint) {
  check();
  if (world_.size == 1) return;
  std::vector<Fingerprint> of_rank;
  for (const detail::WireRecord& record : gather("fingerprint", to_record(fingerprint))) {
    of_rank.push_back(read_fingerprint(record));
  }
  compare_fingerprints(of_rank);
}

void Peers::leave_together() {
  check();
  if (world_.size == 1) return;
  gather("leave", {});
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

// For a rank that has waited a little less to speak, too.
double Peers::grace_seconds() const { return std::min(5.0, world_.timeout_seconds / 8); }

std::optional<FailureReport> Peers::failure_report_of_rank(int rank) {
  std::string text;
  if (!store_->find(fmt::format("gpipe/failed/{}", rank), text)) return std::nullopt;
  return read_failure_report(detail::decode_text(text), world_.size);
}

std::exception_ptr Peers::find_culprit(const std::exception_ptr& error, const FailureReport& own) {
  const auto ask = [&](int rank, bool wait) {
    const Deadline deadline = deadline_in(wait ? grace_seconds() : 0);
    std::optional<FailureReport> report = failure_report_of_rank(rank);
    while (!report && milliseconds_until(deadline) > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      report = failure_report_of_rank(rank);
    }
    return report;
  };
  try {
    return blame(error, own, world_.rank, ask, [this](int rank) { return place_of(rank); });
  } catch (const InvalidArgument&) {  // what another rank has said cannot be read
    return error;
  } catch (const PeerError&) {  // the store is rank 0, which answers whatever its stage does
    if (own.blamed == 0) return error;
    PeerPlace place = place_of(0);
    place.flow = own.flow;
    place.micro_batch = own.micro_batch;
    return std::make_exception_ptr(PeerError(
        place,
        fmt::format("its store does not answer any more; this rank waited for rank {}: {}", own.blamed, own.text)));
  }
}

// Those who are to blame do not come.
void Peers::let_others_read(const std::exception_ptr& error) {
  int num_gone = 0;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError&) {
    num_gone = 1;
  } catch (...) {  // NOLINT(bugprone-empty-catch) this rank's own
  }
  const Deadline deadline = deadline_in(2 * grace_seconds());
  auto num_settled = store_->add("gpipe/settled", 1);
  while (world_.rank == 0 && num_settled + num_gone < world_.size && milliseconds_until(deadline) > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    num_settled = store_->add("gpipe/settled", 0);
  }
}

void Peers::fail(std::exception_ptr error, bool silent) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ending_) {
      ended_.wait(lock, [&] { return error_ != nullptr; });
      std::rethrow_exception(error_);
    }
    ending_ = true;
  }
  if (header_carrier_ != nullptr) carrier().leave(/*together=*/false);
  if (store_ != nullptr) {
    const FailureReport own = failure_report_of(error, silent);
    store_->hurry(to_milliseconds(grace_seconds()));
    try {
      store_->set(fmt::format("gpipe/failed/{}", world_.rank), to_bytes(encode_text(to_record(own))));
    } catch (const PeerError&) {  // NOLINT(bugprone-empty-catch) found out again below
    }
    if (device_ != nullptr) device_->close();
    error = find_culprit(error, own);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    for (const auto& [number, wake] : listeners_) wake();
  }
  ended_.notify_all();
  try {
    if (store_ != nullptr) let_others_read(error);
  } catch (const PeerError&) {  // NOLINT(bugprone-empty-catch) nobody is left to tell
  }
  std::rethrow_exception(error);
}

void Peers::check() const {
  if (!process_.is_here()) {
    throw CallError(
        fmt::format("the peers of rank {} were connected by process {}, from which this one, {}, was forked; only that "
                    "one can talk to them",
                    world_.rank, process_.number(), getpid()));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [&] { return !ending_ || error_ != nullptr; });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

bool Peers::has_failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ending_;
}

int Peers::on_failure(std::function<void()> wake) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != nullptr) wake();
  listeners_.emplace(next_listener_, std::move(wake));
  return next_listener_++;
}

void Peers::forget(int listener) {
  const std::lock_guard<std::mutex> lock(mutex_);
  listeners_.erase(listener);
}

}  // namespace gpipe
