#include "gpipe/checkpoint/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "gpipe/error.h"

namespace gpipe {

struct Sha256::Context {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(context); }
};

namespace {

void check(int result) {
  if (result != 1) throw Error("OpenSSL does not compute SHA-256; check its installation and its configuration");
}

}  // namespace

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  check(context_->context != nullptr ? 1 : 0);
  check(EVP_DigestInit_ex(context_->context, EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::add(const void* bytes, std::size_t size) { check(EVP_DigestUpdate(context_->context, bytes, size)); }

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(context_->context, digest.data(), &size));
  return fmt::format("{:02x}", fmt::join(digest.data(), digest.data() + size, ""));
}

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

}  // namespace gpipe
