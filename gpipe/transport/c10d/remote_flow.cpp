#include "gpipe/transport/c10d/remote_flow.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "gpipe/interpret/channel.h"
#include "gpipe/model/skip_store.h"
#include "gpipe/os/blocked_signal.h"

namespace gpipe::detail {
namespace {

// The thread of an idle flow waits for the next step, however long that takes; only those who need something count
// time.
constexpr std::chrono::hours kForever{24 * 365};

// libtorch 1.13 has no way to sleep until a device has come to a point.
constexpr std::chrono::microseconds kBetweenQueries{50};

void check_options(const RemoteFlowOptions& options, const Peers& peers) {
  const auto refuse = [](const std::string& why) { throw InvalidArgument("a flow between processes " + why); };
  if (options.capacity < 1) refuse(fmt::format("needs a capacity of one or more, not {}", options.capacity));
  if (options.id < 0 || options.id >= 1 << 20) refuse(fmt::format("needs a number from 0 to 2^20, not {}", options.id));
  if (options.peer < 0 || options.peer >= peers.world().size || options.peer == peers.world().rank) {
    refuse(fmt::format("needs another rank at its other end, not {}", options.peer));
  }
  if (options.limits.max_tensors < 1 || options.limits.max_tensors > FlowLimits::kMostTensors) {
    refuse(fmt::format("takes 1 to {} tensors a packet, not {}", FlowLimits::kMostTensors, options.limits.max_tensors));
  }
}

at::Tensor bytes_tensor(std::vector<char> bytes) {
  auto owner = std::make_shared<std::vector<char>>(std::move(bytes));
  return at::from_blob(
      owner->data(), {static_cast<std::int64_t>(owner->size())}, [owner](void*) {}, at::TensorOptions(at::kByte));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    const std::string text = exception.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

FlowEnd::FlowEnd(Peers& peers, RemoteFlowOptions options) : peers_(peers), options_(std::move(options)) {
  check_options(options_, peers_);
  listener_ = peers_.on_failure([this] { abort(); });
}

template <typename Change>
void FlowEnd::change(const Change& make) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    make();
  }
  changed_.notify_all();
}

void FlowEnd::abort() {
  change([this] {
    stopping_ = true;
    for (const Work& work : waiting_) work->abort();
  });
}

void FlowEnd::stop() {
  peers_.forget(listener_);
  abort();
  if (thread_.joinable()) thread_.join();
}

void FlowEnd::cancel_waits() {
  change([this] { cancelled_ = true; });
}

void FlowEnd::allow_waits() {
  change([this] { cancelled_ = false; });
}

PeerPlace FlowEnd::place(int micro_batch) const {
  PeerPlace place = peers_.place_of(options_.peer);
  place.flow = options_.name.empty() ? to_string(options_.flow) : options_.name;
  place.micro_batch = micro_batch;
  return place;
}

template <typename Ready>
void FlowEnd::wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready, int micro_batch, const char* verb) {
  const double seconds = peers_.world().timeout_seconds;
  const bool in_time = changed_.wait_until(lock, deadline_in(seconds),
                                           [&] { return cancelled_ || stopping_ || ready() || lost_ != nullptr; });
  if (stopping_) {
    lock.unlock();
    peers_.check();
    throw CancelledError();
  }
  if (cancelled_) throw CancelledError();
  if (in_time && ready()) return;
  const std::exception_ptr lost = lost_;
  lock.unlock();
  if (lost != nullptr) {
    try {
      std::rethrow_exception(lost);
    } catch (const ProtocolError&) {
      peers_.fail(lost);
    } catch (...) {
      peers_.fail(std::make_exception_ptr(PeerError(
          place(micro_batch),
          fmt::format("lost, while this rank waited to {}: {}; see that rank's own output", verb, text_of(lost)))));
    }
  }
  peers_.fail(std::make_exception_ptr(PeerError(
                  place(micro_batch), fmt::format("silent for {} s, while this rank waited to {}; if it was only slow, "
                                                  "raise GPIPE_TIMEOUT",
                                                  seconds, verb))),
              /*silent=*/true);
}

bool FlowEnd::finish(const Work& work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
  }
  std::exception_ptr error;
  try {
    if (work->wait(kForever)) return true;
    error = std::make_exception_ptr(Error("the operation was aborted"));
  } catch (...) {
    error = std::current_exception();
  }
  lose(error);
  return false;
}

void FlowEnd::lose(const std::exception_ptr& error) {
  change([&] {
    if (lost_ == nullptr) lost_ = error;
  });
}

FlowSender::FlowSender(Peers& peers, RemoteFlowOptions options) : FlowEnd(peers, std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

FlowSender::~FlowSender() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::uncaught_exceptions() == 0) {
      changed_.wait_until(lock, deadline_in(peers_.world().timeout_seconds),
                          [&] { return on_the_way_.empty() || cancelled_ || stopping_ || lost_ != nullptr; });
    }
  }
  stop();
}

void FlowSender::put(Packet packet) {
  for (std::size_t index = 0; index < packet.versions.size(); ++index) {
    const at::Tensor& tensor = packet.tensors[index];
    const bool is_unchanged = !tensor.defined() || version_of(tensor) == packet.versions[index];
    packet.versions[index] = is_unchanged ? 0 : -1;
  }
  SentPacket sent = describe(packet, options_.id, options_.limits, copies_);
  if (options_.checksum && sent.whole.empty()) add_checksum(sent);
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(
      lock, [&] { return lost_ == nullptr && on_the_way_.size() < static_cast<std::size_t>(options_.capacity); },
      packet.micro_batch, "send");
  Outgoing outgoing;
  outgoing.is_posted = sent.whole.empty() && (on_the_way_.empty() || on_the_way_.back().is_posted);
  if (outgoing.is_posted) {
    try {
      outgoing.works = post(sent);
    } catch (...) {
      lost_ = std::current_exception();
      wait_until(
          lock, [] { return false; }, packet.micro_batch, "send");
    }
  } else {
    outgoing.packet = std::move(sent);
  }
  on_the_way_.push_back(std::move(outgoing));
  lock.unlock();
  changed_.notify_all();
}

std::vector<FlowEnd::Work> FlowSender::post(SentPacket& packet) {
  const BlockedSignal scope(SIGPIPE);
  std::vector<Work> works;
  works.push_back(peers_.header_carrier().send(bytes_tensor(std::move(packet.header)), options_.peer, options_.id));
  for (const at::Tensor& bytes : packet.payload) {
    works.push_back(peers_.carrier().send(bytes, options_.peer, options_.id));
  }
  return works;
}

bool FlowSender::wait_for_bytes(const SentPacket& packet) {
  for (const auto& point : packet.whole) {
    while (!point->query()) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, kBetweenQueries, [this] { return stopping_; })) return false;
    }
  }
  return true;
}

bool FlowSender::post_when_whole(Outgoing& outgoing) {
  try {
    if (!wait_for_bytes(outgoing.packet)) return false;
    if (options_.checksum && !outgoing.packet.whole.empty()) add_checksum(outgoing.packet);
    std::vector<Work> works = post(outgoing.packet);
    change([&] {
      waiting_ = works;
      outgoing.works = std::move(works);
      outgoing.is_posted = true;
    });
    return true;
  } catch (...) {
    lose(std::current_exception());
    return false;
  }
}

void FlowSender::flush() {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(
      lock, [&] { return on_the_way_.empty(); }, -1, "send");
}

void FlowSender::run() {
  const BlockedSignal scope(SIGPIPE);
  while (true) {
    Outgoing* next = nullptr;  // stays where it is while others are put behind it
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !on_the_way_.empty(); });
      if (stopping_) return;
      next = &on_the_way_.front();
      waiting_ = next->works;
    }
    if (!next->is_posted && !post_when_whole(*next)) return;
    for (const Work& work : waiting_) {
      if (!finish(work)) return;
    }
    change([this] {
      waiting_.clear();
      on_the_way_.pop_front();
    });
  }
}

FlowReceiver::FlowReceiver(Peers& peers, RemoteFlowOptions options) : FlowEnd(peers, std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

FlowReceiver::~FlowReceiver() { stop(); }

Packet FlowReceiver::next(int micro_batch) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(
      lock, [&] { return !arrived_.empty(); }, micro_batch, "receive");
  Packet packet = std::move(arrived_.front());
  arrived_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return packet;
}

void FlowReceiver::refuse(int micro_batch, const std::string& why) {
  peers_.fail(std::make_exception_ptr(ProtocolError(place(micro_batch), why)));
}

Packet FlowReceiver::take() { return next(-1); }

Packet FlowReceiver::take(int micro_batch) {
  Packet packet = next(micro_batch);
  if (packet.micro_batch != micro_batch) {
    refuse(micro_batch, fmt::format("it sent micro-batch {}, but {} was expected", packet.micro_batch, micro_batch));
  }
  return packet;
}

Packet FlowReceiver::take_of_step(std::int64_t step) {
  Packet packet = next(-1);
  while (packet.step < step) packet = next(-1);
  if (packet.step != step) {
    refuse(-1, fmt::format("it sent a packet of step {}, but one of step {} was expected", packet.step, step));
  }
  return packet;
}

// The next packet, whole; false if it does not come any more.
bool FlowReceiver::receive(ReceivedPacket& received) {
  const auto post = [&](Carrier& carrier, at::Tensor bytes) {
    Work work = carrier.receive(std::move(bytes), options_.peer, options_.id);
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(work);
    return work;
  };
  const auto forget = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.clear();
  };
  std::vector<char> header(header_bytes(options_.limits));
  const at::Tensor header_view = at::from_blob(header.data(), {static_cast<std::int64_t>(header.size())}, at::kByte);
  const bool has_header = finish(post(peers_.header_carrier(), header_view));
  forget();
  if (!has_header) return false;
  try {
    received = read_header(header, options_.id, options_.limits, options_.pinned);
  } catch (const InvalidArgument& error) {
    throw ProtocolError(place(-1), error.what());
  }
  std::vector<Work> works;
  for (const at::Tensor& bytes : received.payload) works.push_back(post(peers_.carrier(), bytes));
  const bool is_whole = std::all_of(works.begin(), works.end(), [&](const Work& work) { return finish(work); });
  forget();
  if (is_whole && received.checksum && checksum_of(received.payload) != *received.checksum) {
    throw ProtocolError(place(received.packet.micro_batch), "its bytes do not fit their checksum");
  }
  return is_whole;
}

void FlowReceiver::run() {
  const BlockedSignal scope(SIGPIPE);
  try {
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || arrived_.size() < static_cast<std::size_t>(options_.capacity); });
        if (stopping_) return;
      }
      ReceivedPacket received;
      if (!receive(received)) return;
      change([&] { arrived_.push_back(std::move(received.packet)); });
    }
  } catch (...) {
    lose(std::current_exception());  // nothing that comes after it could be trusted
  }
}

}  // namespace gpipe::detail
