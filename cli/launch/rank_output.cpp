#include "cli/launch/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace gpipe::cli {
namespace {

constexpr std::size_t kLongestLine = std::size_t{64} << 10;
constexpr std::size_t kMostLastLines = 10;
constexpr std::size_t kLongestLastLine = 500;

}  // namespace

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
