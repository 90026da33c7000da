// Fingerprint: what all ranks must have in common, as text, in order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Names and values, such as {"schedule", "1f1b"}. Names may repeat.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// The name of an entry whose value says by itself what it is about, such as "--lr 0.1".
constexpr const char* kAgreedText = "";

// Each entry as its lengths and its letters, so that no letter in it can be mistaken for a separator.
std::string encode(const Fingerprint& fingerprint);
// Throws InvalidArgument if it is none.
Fingerprint decode_fingerprint(const std::string& text);

// A number that stands in an entry. Throws InvalidArgument if the value is anything else, or out of that range.
std::int64_t decode_number(const std::string& value, std::int64_t least, std::int64_t most);

// REQUIRES: at least one; by rank. Throws FingerprintError for the first rank that differs from rank 0, naming the first
// entry that does, both values and both ranks. Where an entry is an agreed text, that text is the
// name of the error.
void compare_fingerprints(const std::vector<Fingerprint>& of_rank);

}  // namespace gpipe
