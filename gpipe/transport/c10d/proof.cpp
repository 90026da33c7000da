#include "gpipe/transport/c10d/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "gpipe/error.h"

namespace gpipe {

Nonce make_nonce() {
  Nonce nonce{};
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    throw HandshakeError("the system has no random bits to meet other ranks with");
  }
  return nonce;
}

Proof make_proof(const std::string& secret, const std::string& message) {
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), proof.data(), &size);
  if (made == nullptr || size != proof.size()) throw HandshakeError("OpenSSL cannot make an HMAC-SHA256 here");
  return proof;
}

bool is_same(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Checksum::Checksum() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1) {
    EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_));
    throw HandshakeError("OpenSSL cannot make a SHA-256 sum here");
  }
}

Checksum::~Checksum() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Checksum::add(const void* bytes, std::size_t size) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes, size);
}

unsigned long long Checksum::value() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), sum.data(), nullptr);
  unsigned long long first = 0;
  std::memcpy(&first, sum.data(), sizeof first);
  return first;
}

}  // namespace gpipe
