// Proof: how one who knows the run's secret shows it without saying it. HMAC-SHA256 of OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace gpipe {

using Nonce = std::array<unsigned char, 32>;  // random, used once
using Proof = std::array<unsigned char, 32>;

// Throws HandshakeError if the system has no random bits.
Nonce make_nonce();

// Whoever does not know `secret` can neither make nor foresee it.
Proof make_proof(const std::string& secret, const std::string& message);

// In a time that says nothing about where they differ.
bool is_same(const Proof& a, const Proof& b);

// The first 8 bytes of the SHA-256 sum of bytes that come in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(const void* bytes, std::size_t size);
  // Once.
  unsigned long long value();

 private:
  void* context_;
};

}  // namespace gpipe
