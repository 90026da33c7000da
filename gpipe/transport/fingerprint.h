// Fingerprint: what all ranks must have in common, as text, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::detail {

// Names and values, such as {"schedule", "1f1b"}. Names may repeat.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// The name of an entry whose value says by itself what it is about, such as "--lr 0.1".
constexpr const char* kAgreedText = "";

class WireRecord;

WireRecord to_record(const Fingerprint& fingerprint);
// Throws InvalidArgument if it is none.
Fingerprint read_fingerprint(const WireRecord& record);

// REQUIRES: at least one; by rank. Throws FingerprintError for the first rank that differs from rank 0, naming the
// first entry that does, both values and both ranks. Where an entry is an agreed text, that text is the name of the
// error.
void compare_fingerprints(const std::vector<Fingerprint>& of_rank);

}  // namespace gpipe::detail
