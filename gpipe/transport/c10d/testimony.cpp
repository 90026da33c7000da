#include "gpipe/transport/c10d/testimony.h"

#include <fmt/format.h>

#include <set>

#include "gpipe/transport/wire_record.h"

namespace gpipe {

detail::WireRecord to_record(const Testimony& testimony) {
  detail::WireRecord record;
  record.add("blamed", testimony.blamed);
  record.add("silent", testimony.silent);
  record.add("flow", testimony.flow);
  record.add("micro_batch", testimony.micro_batch);
  record.add("text", testimony.text);
  return record;
}

Testimony read_testimony(const detail::WireRecord& record, int num_ranks) {
  detail::WireReader reader(record, "this is not a testimony");
  Testimony testimony;
  testimony.blamed = reader.integer<int>("blamed", -1, num_ranks - 1);
  testimony.silent = reader.flag("silent");
  testimony.flow = reader.text("flow");
  testimony.micro_batch = reader.integer<int>("micro_batch", -1);
  testimony.text = reader.text("text");
  reader.finish();
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
