#include "gpipe/transport/c10d/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "gpipe/os/network.h"
#include "gpipe/transport/c10d/handshake.h"

namespace gpipe::detail {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

void check_secret(const World& world, const std::string& address) {
  if (!world.secret.empty() || is_loopback_number(address)) return;
  throw EnvironmentError(
      fmt::format("GPIPE_SECRET is missing: the ranks meet at {}, where others could join; set the same secret on all "
                  "ranks, such as that of 'openssl rand -hex 32'",
                  address),
      "GPIPE_SECRET");
}

// Numeric. Rank 0 takes its interface's, because its own name may lead it to the loopback.
std::string meeting_address(const World& world) {
  const bool is_own = world.rank == 0 && !world.network_interface.empty();
  std::string address = is_own ? interface_address(world.network_interface) : resolve(world.master_address);
  if (world.rank == 0 && world.local_size < world.size && is_loopback_number(address)) {
    throw HandshakeError(fmt::format(
        "the address where the ranks are to meet, '{}', is the loopback here ({}), which other hosts cannot "
        "reach; name the network interface in GPIPE_INTERFACE, or the address in GPIPE_MASTER_ADDR",
        world.master_address, address));
  }
  return address;
}

// Under which a rank says why its part has ended.
std::string report_key(int rank) { return fmt::format("gpipe/failed/{}", rank); }

}  // namespace

Meeting::Meeting(const World& world) : world_(world), hosts_(static_cast<std::size_t>(world.size)) {
  store_ =
      c10::make_intrusive<ProvenStore>(join_store(), to_milliseconds(world_.timeout_seconds), world_.master_address);
  WireRecord own;
  own.add("host", world_.host);
  std::vector<std::string> hosts;
  for (const WireRecord& record : gather("host", own)) {
    WireReader reader(record, "this is not a rank's host");
    hosts.push_back(reader.text("host"));
    reader.finish();
  }
  hosts_ = std::move(hosts);
}

FileDescriptor Meeting::join_store() {
  SocketName place{meeting_address(world_), world_.master_port};
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
  return connection;
}

PeerPlace Meeting::place_of(int rank) const {
  return {rank, hosts_[static_cast<std::size_t>(rank)], rank % world_.num_stages(), "", -1};
}

double Meeting::grace_seconds() const { return std::min(5.0, world_.timeout_seconds / 8); }

std::vector<WireRecord> Meeting::gather(const std::string& name, const WireRecord& own,
                                        const std::function<void(int rank)>& on_late) {
  const std::string prefix = fmt::format("gpipe/{}/{}/", num_gathered_++, name);
  store_->set_text(prefix + std::to_string(world_.rank), encode_text(own));
  const Deadline deadline = deadline_in(world_.timeout_seconds);
  const Deadline grace = deadline_in(grace_seconds());
  bool is_told = on_late == nullptr;
  std::vector<std::string> texts(static_cast<std::size_t>(world_.size));
  for (int rank = 0; rank < world_.size; ++rank) {
    std::string& text = texts[static_cast<std::size_t>(rank)];
    const bool has_come = look_until(deadline, [&] {
      if (store_->find(prefix + std::to_string(rank), text)) return true;
      if (const auto report = report_of(rank)) {
        throw PeerError(place_of(rank), fmt::format("it has failed: {}", report->text));
      }
      if (!is_told && milliseconds_until(grace) == 0) {
        is_told = true;
        on_late(rank);
      }
      return false;
    });
    if (!has_come) {
      std::string what = fmt::format("it has not come within {} s", world_.timeout_seconds);
      const std::string refusals = server_ ? server_->refusals() : "";
      if (!refusals.empty()) what += fmt::format(" ({})", refusals);
      throw PeerError(place_of(rank), what);
    }
  }
  // Rank 0 has the store: it stays until the others have seen everything.
  store_->add(prefix + "seen", 1);
  if (world_.rank == 0) look_until(deadline, [&] { return store_->add(prefix + "seen", 0) >= world_.size; });
  std::vector<WireRecord> records;
  for (const std::string& text : texts) records.push_back(decode_text(text));
  return records;
}

std::optional<FailureReport> Meeting::report_of(int rank) {
  std::string text;
  if (!store_->find(report_key(rank), text)) return std::nullopt;
  return read_failure_report(decode_text(text), world_.size);
}

void Meeting::report(const FailureReport& own) {
  store_->hurry(to_milliseconds(grace_seconds()));
  try {
    store_->set_text(report_key(world_.rank), encode_text(to_record(own)));
  } catch (const PeerError&) {  // NOLINT(bugprone-empty-catch) find_culprit finds it out again
  }
}

std::exception_ptr Meeting::find_culprit(const std::exception_ptr& error, const FailureReport& own) {
  const auto ask = [&](int rank, bool wait) {
    std::optional<FailureReport> report;
    look_until(deadline_in(wait ? grace_seconds() : 0), [&] { return (report = report_of(rank)).has_value(); });
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

void Meeting::let_others_read(const std::exception_ptr& error) {
  try {
    store_->add("gpipe/settled", 1);
    if (world_.rank != 0) return;
    const int num_gone = is_about_one_who_is_gone(error) ? 1 : 0;
    look_until(deadline_in(2 * grace_seconds()),
               [&] { return store_->add("gpipe/settled", 0) + num_gone >= world_.size; });
  } catch (const PeerError&) {  // NOLINT(bugprone-empty-catch) nobody is left to tell
  }
}

bool Meeting::is_about_one_who_is_gone(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& about) {
    std::string report;
    return !store_->find(report_key(about.place().rank), report);
  } catch (...) {
    return false;  // this rank's own
  }
}

}  // namespace gpipe::detail
