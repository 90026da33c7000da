// The carrier over MPI: see make_mpi_carrier.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupMPI.hpp>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/os/blocked_signal.h"
#include "gpipe/transport/c10d/carrier.h"
#include "gpipe/transport/c10d/socket.h"

namespace gpipe::detail {
namespace {

// MPI counts elements in an int.
constexpr std::int64_t kMostBytes = 1 << 30;
// Of the flows; MPI promises 32767 only.
constexpr int kMostTags = 1 << 20;
// Behind those of the flows, on Gloo.
constexpr int kWatchTag = 1 << 22;
constexpr std::chrono::microseconds kPause{20};
constexpr std::chrono::hours kForever{24 * 365};

// Some rank, or some bytes, will not come any more: MPI would wait for them.
std::atomic<bool> must_not_end{false};

void check(int status, const char* what) {
  if (status != MPI_SUCCESS) throw Error(fmt::format("{} failed with MPI's error {}", what, status));
}

void end_mpi() {
  int is_over = 0;
  if (MPI_Finalized(&is_over) == MPI_SUCCESS && is_over == 0 && !must_not_end) MPI_Finalize();
}

void start_mpi() {
  static std::once_flag once;
  std::call_once(once, [] {
    int is_running = 0;
    int threads = 0;
    check(MPI_Initialized(&is_running), "MPI_Initialized");
    if (is_running != 0) {  // the program has started it, and will end it
      check(MPI_Query_thread(&threads), "MPI_Query_thread");
    } else {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "MPI_Init_thread");
      std::atexit(end_mpi);
    }
    if (threads >= MPI_THREAD_SERIALIZED) return;
    throw EnvironmentError(
        "GPIPE_CARRIER is 'mpi', but MPI was started for one thread only; start it with "
        "MPI_THREAD_MULTIPLE, or unset GPIPE_CARRIER",
        "GPIPE_CARRIER");
  });
}

void check_ranks(const World& world) {
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank == world.rank && size == world.size) return;
  throw EnvironmentError(
      fmt::format(
          "GPIPE_CARRIER is 'mpi', but MPI counts this process as rank {} of {}, and {} as rank {} of {}; start the "
          "ranks with mpirun, or unset GPIPE_CARRIER",
          rank, size, name(world.launcher), world.rank, world.size),
      "GPIPE_CARRIER");
}

void check_tags() {
  void* value = nullptr;
  int is_there = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &is_there), "MPI_Comm_get_attr");
  if (is_there != 0 && *static_cast<int*>(value) >= kMostTags) return;
  throw EnvironmentError("GPIPE_CARRIER is 'mpi', but this MPI has fewer than 2^20 tags; unset it", "GPIPE_CARRIER");
}

MPI_Comm make_communicator(const World& world) {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &communicator, &request), "MPI_Comm_idup");
  const Deadline deadline = deadline_in(world.timeout_seconds);
  for (int is_made = 0; is_made == 0;) {
    check(MPI_Test(&request, &is_made, MPI_STATUS_IGNORE), "MPI_Test");
    if (is_made != 0) break;
    if (milliseconds_until(deadline) == 0) {
      must_not_end = true;
      throw HandshakeError(fmt::format("the ranks did not come together over MPI within {} s", world.timeout_seconds));
    }
    std::this_thread::sleep_for(kPause);
  }
  check(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return communicator;
}

// Notices when a rank is gone, which MPI does not: waits over Gloo for a message that nobody sends.
class Watch {
 public:
  Watch(c10d::ProcessGroupGloo& group, int peer) {
    const BlockedSignal scope(SIGPIPE);
    std::vector<at::Tensor> tensors = {at::empty({1}, at::kByte)};
    work_ = group.recv(tensors, peer, kWatchTag);
    thread_ = std::thread([this] {
      try {
        work_->wait(kForever);
      } catch (const std::exception& error) {
        why_ = error.what();
      }
      is_lost_ = true;
    });
  }
  ~Watch() {
    work_->abort();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void check() const {
    if (is_lost_) throw Error(why_);
  }

 private:
  Carrier::Work work_;
  std::string why_ = "the connection was closed";
  std::atomic<bool> is_lost_{false};  // set after `why_`
  std::thread thread_;
};

// c10d's own wait would keep all other threads from MPI until it is over, and could not be aborted.
class MpiWork : public c10d::Work {
 public:
  MpiWork(at::Tensor bytes, std::vector<Carrier::Work> pieces, std::shared_ptr<Watch> watch)
      : bytes_(std::move(bytes)), pieces_(std::move(pieces)), watch_(std::move(watch)) {}

  // A piece that is on its way may not be destroyed, nor its bytes: both are left.
  ~MpiWork() override {
    try {
      while (num_done_ < pieces_.size() && pieces_[num_done_]->isCompleted()) ++num_done_;
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) it is left, too
    }
    if (num_done_ == pieces_.size()) return;
    must_not_end = true;
    for (std::size_t piece = num_done_; piece < pieces_.size(); ++piece) static_cast<void>(pieces_[piece].release());
    static_cast<void>(std::make_unique<at::Tensor>(std::move(bytes_)).release());
  }

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    for (; num_done_ < pieces_.size(); ++num_done_) {
      c10d::Work& piece = *pieces_[num_done_];
      while (!piece.isCompleted()) {
        if (is_aborted_) return false;
        watch_->check();
        std::this_thread::sleep_for(kPause);
      }
      if (piece.isSuccess()) continue;
      ++num_done_;
      std::rethrow_exception(piece.exception());
    }
    return true;
  }

  void abort() override { is_aborted_ = true; }

 private:
  at::Tensor bytes_;
  std::vector<Carrier::Work> pieces_;
  const std::shared_ptr<Watch> watch_;
  std::size_t num_done_ = 0;
  std::atomic<bool> is_aborted_{false};
};

class MpiCarrier : public Carrier {
 public:
  MpiCarrier(const World& world, c10d::ProcessGroupGloo& group)
      : gloo_(group),
        mpi_(c10::make_intrusive<c10d::ProcessGroupMPI>(world.rank, world.size, make_communicator(world))) {}

  ~MpiCarrier() override {
    if (!has_left_) must_not_end = true;
  }

  Work send(at::Tensor bytes, int peer, int flow) override {
    return start(std::move(bytes), peer, [&](std::vector<at::Tensor>& piece) { return mpi_->send(piece, peer, flow); });
  }
  Work receive(at::Tensor bytes, int peer, int flow) override {
    return start(std::move(bytes), peer, [&](std::vector<at::Tensor>& piece) { return mpi_->recv(piece, peer, flow); });
  }

  void leave(bool together) override {
    if (together) {
      has_left_ = true;
    } else {
      must_not_end = true;
    }
  }

 private:
  template <typename Start>
  Work start(at::Tensor bytes, int peer, const Start& start_piece) {
    const std::shared_ptr<Watch> watch = watch_of(peer);
    std::vector<Work> pieces;
    for (const at::Tensor& piece : bytes.split(kMostBytes)) {
      std::vector<at::Tensor> tensors = {piece};
      pieces.push_back(start_piece(tensors));
    }
    return c10::make_intrusive<MpiWork>(std::move(bytes), std::move(pieces), watch);
  }

  std::shared_ptr<Watch> watch_of(int peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Watch>& watch = watches_[peer];
    if (watch == nullptr) watch = std::make_shared<Watch>(gloo_, peer);
    return watch;
  }

  c10d::ProcessGroupGloo& gloo_;
  const c10::intrusive_ptr<c10d::ProcessGroupMPI> mpi_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Watch>> watches_;  // by rank
  std::atomic<bool> has_left_{false};
};

}  // namespace

std::unique_ptr<Carrier> make_mpi_carrier(const World& world, c10d::ProcessGroupGloo& group) {
  start_mpi();
  check_ranks(world);
  check_tags();
  return std::make_unique<MpiCarrier>(world, group);
}

}  // namespace gpipe::detail
