#include "cli/launch/output_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>

#include "gpipe/os/blocked_signal.h"

namespace gpipe::cli {
namespace {

// What a pipe takes without waiting once it takes anything, and without mixing it with what others write.
constexpr std::size_t kAtOnce = PIPE_BUF;

}  // namespace

void OutputQueue::add(int fd, std::string_view text) {
  if (has_no_reader(fd)) return;
  if (!items_.empty() && items_.back().fd == fd && items_.back().text.size() + text.size() <= kAtOnce) {
    items_.back().text += text;
  } else {
    items_.push_back({fd, std::string(text)});
  }
  num_bytes_ += text.size();
}

void OutputQueue::write_some() {
  Item& item = items_.front();
  if (torn_.count(item.fd) > 0 && !item.mends) {
    item.text.insert(item.text.begin(), '\n');
    item.mends = true;
    ++num_bytes_;
  }
  const BlockedSignal scope(SIGXFSZ);
  const ssize_t count = write(item.fd, item.text.data(), std::min(item.text.size(), kAtOnce));
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    if (errno == EPIPE) {
      drop_all(item.fd);
    } else {
      drop_first(errno);
    }
    return;
  }
  torn_.erase(item.fd);
  item.is_torn = count > 0 ? item.text[static_cast<std::size_t>(count) - 1] != '\n' : item.is_torn;
  item.text.erase(0, static_cast<std::size_t>(count));
  num_bytes_ -= static_cast<std::size_t>(count);
  if (item.text.empty()) items_.pop_front();
}

// The next text is tried: there may be room again.
void OutputQueue::drop_first(int error) {
  const Item& item = items_.front();
  if (error_ == 0) {
    error_ = error;
    error_fd_ = item.fd;
  }
  if (item.is_torn) torn_.insert(item.fd);
  num_bytes_ -= item.text.size();
  items_.pop_front();
}

void OutputQueue::drop_all(int fd) {
  readerless_.insert(fd);
  std::deque<Item> kept;
  num_bytes_ = 0;
  for (Item& item : items_) {
    if (item.fd == fd) continue;
    num_bytes_ += item.text.size();
    kept.push_back(std::move(item));
  }
  items_ = std::move(kept);
}

void OutputQueue::clear() {
  items_.clear();
  num_bytes_ = 0;
}

}  // namespace gpipe::cli
