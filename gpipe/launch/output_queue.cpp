#include "gpipe/launch/output_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace gpipe {
namespace {

// What a pipe takes without waiting once it takes anything, and without mixing it with what others write.
constexpr std::size_t kAtOnce = PIPE_BUF;

}  // namespace

void OutputQueue::add(int fd, std::string_view text) {
  if (has_refused(fd)) return;
  if (!items_.empty() && items_.back().fd == fd && items_.back().text.size() + text.size() <= kAtOnce) {
    items_.back().text += text;
  } else {
    items_.push_back({fd, std::string(text)});
  }
  num_bytes_ += text.size();
}

void OutputQueue::write_some() {
  Item& item = items_.front();
  const ssize_t count = write(item.fd, item.text.data(), std::min(item.text.size(), kAtOnce));
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    if (errno != EPIPE) error_ = errno;
    refuse(item.fd);
    return;
  }
  item.text.erase(0, static_cast<std::size_t>(count));
  num_bytes_ -= static_cast<std::size_t>(count);
  if (item.text.empty()) items_.pop_front();
}

void OutputQueue::refuse(int fd) {
  refused_.insert(fd);
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

}  // namespace gpipe
