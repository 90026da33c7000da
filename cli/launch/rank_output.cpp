#include "cli/launch/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "gpipe/os/blocked_signal.h"
#include "gpipe/text/utf8.h"

namespace gpipe::cli {
namespace {

using detail::BlockedSignal;
using detail::continues_character;
using detail::FileDescriptor;

constexpr std::size_t kLongestLine = std::size_t{64} << 10;
constexpr std::size_t kMostLastLines = 10;
constexpr std::size_t kLongestLastLine = 500;
// What a pipe takes without waiting once it takes anything, and without mixing it with what others write.
constexpr std::size_t kAtOnce = PIPE_BUF;

}  // namespace

LineCutter::LineCutter(std::size_t longest_bytes, Take take) : longest_bytes_(longest_bytes), take_(std::move(take)) {}

void LineCutter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t room =
        longest_bytes_ + 1 - begun_.size();  // one more tells a line that fits from one that does not
    const std::size_t count = std::min({end, bytes.size(), room});
    begun_.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    if (begun_.size() > longest_bytes_) {
      take_too_long();
    } else if (count == end) {
      take_(begun_);
      begun_.clear();
      bytes.remove_prefix(1);
    }
  }
}

void LineCutter::finish() {
  if (begun_.empty()) return;
  take_(begun_);
  begun_.clear();
}

void LineCutter::take_too_long() {
  constexpr std::size_t kLongestLetter = 4;
  const auto continues = [this](std::size_t at) { return continues_character(begun_[at]); };
  std::size_t end = longest_bytes_;
  while (end > longest_bytes_ - kLongestLetter + 1 && continues(end)) --end;
  if (continues(end)) end = longest_bytes_;  // not UTF-8 anyway
  take_(std::string_view(begun_).substr(0, end));
  begun_.erase(0, end);
}

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

RankOutput::RankOutput(FileDescriptor source, int target, std::string prefix, OutputQueue& queue)
    : source_(std::move(source)),
      target_(target),
      prefix_(std::move(prefix)),
      queue_(queue),
      cutter_(kLongestLine, [this](std::string_view line) { take(line); }) {}

bool RankOutput::read_some() {
  char block[1 << 14];
  const ssize_t count = read(source_.get(), block, sizeof block);
  if (count > 0) {
    cutter_.add({block, static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  close();
  return false;
}

void RankOutput::close() {
  cutter_.finish();
  source_.reset();
}

void RankOutput::take(std::string_view line) {
  queue_.add(target_, fmt::format("{}{}\n", prefix_, line));
  if (last_lines_.size() == kMostLastLines) last_lines_.pop_front();
  last_lines_.emplace_back(line.substr(0, kLongestLastLine));
}

std::string rank_prefix(int rank, bool colour) {
  constexpr int kColours[] = {36, 33, 32, 35, 34, 31};  // of terminals: cyan, yellow, green, magenta, blue, red
  if (!colour) return fmt::format("[{}] ", rank);
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", kColours[rank % 6], rank);
}

}  // namespace gpipe::cli
