// Fingerprint: what all ranks must have in common, as text, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Names and values, such as {"schedule", "1f1b"}. Names may repeat.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// Each entry as its lengths and its letters, so that no letter in it can be mistaken for a separator.
std::string encode(const Fingerprint& fingerprint);
// Throws InvalidArgument if it is none.
Fingerprint decode_fingerprint(const std::string& text);

// REQUIRES: at least one; by rank. Throws FingerprintError for the first rank that differs from rank 0, naming the first
// entry that does, both values and both ranks.
void compare_fingerprints(const std::vector<Fingerprint>& of_rank);

}  // namespace gpipe
