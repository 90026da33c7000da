#include "gpipe/transport/c10d/testimony.h"

#include <fmt/format.h>

#include <cstdlib>
#include <set>

#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {

std::string encode(const Testimony& testimony) {
  return encode(Fingerprint{{"blamed", std::to_string(testimony.blamed)},
                            {"silent", testimony.silent ? "1" : "0"},
                            {"flow", testimony.flow},
                            {"micro-batch", std::to_string(testimony.micro_batch)},
                            {"text", testimony.text}});
}

Testimony decode_testimony(const std::string& text) {
  const Fingerprint entries = decode_fingerprint(text);
  if (entries.size() != 5) throw InvalidArgument("this is not a testimony");
  Testimony testimony;
  testimony.blamed = std::atoi(entries[0].second.c_str());
  testimony.silent = entries[1].second == "1";
  testimony.flow = entries[2].second;
  testimony.micro_batch = std::atoi(entries[3].second.c_str());
  testimony.text = entries[4].second;
  return testimony;
}

Testimony testimony_of(const std::exception_ptr& error, bool silent) {
  constexpr std::size_t kMostLetters = 4000;
  Testimony testimony;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& peer) {
    testimony.blamed = peer.place().rank;
    testimony.silent = silent;
    testimony.flow = peer.place().flow;
    testimony.micro_batch = peer.place().micro_batch;
    testimony.text = peer.reason();
  } catch (const std::exception& exception) {
    testimony.text = exception.what();
  } catch (...) {
    testimony.text = "an exception that is not a std::exception";
  }
  testimony.text = testimony.text.substr(0, kMostLetters);
  return testimony;
}

std::exception_ptr blame(const std::exception_ptr& error, const Testimony& own, int own_rank,
                         const std::function<std::optional<Testimony>(int rank, bool wait)>& ask,
                         const std::function<PeerPlace(int rank)>& place_of) {
  if (own.blamed < 0) return error;
  Testimony last = own;
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
    const std::optional<Testimony> next = ask(rank, last.silent);
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

}  // namespace gpipe
