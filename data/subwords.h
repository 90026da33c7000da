// SentencePiece behind an interface, in a library of its own that is loaded when it is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpipe::data {

// Note [Two protobufs]
// ~~~~~~~~~~~~~~~~~~~~
// Debian's libsentencepiece holds a copy of protobuf and shows its symbols, and libtorch needs another version of
// protobuf: linked to both, a program dies before main. So SentencePiece is linked to libgpipe_subwords.so alone. That
// library is opened with its own symbols before those of others, and without showing any to them. What crosses its
// border are the types below.

class Subwords {
 public:
  Subwords() = default;
  virtual ~Subwords() = default;
  Subwords(const Subwords&) = delete;
  Subwords& operator=(const Subwords&) = delete;

  virtual std::int64_t size() const = 0;
  virtual std::vector<std::int32_t> special_ids() const = 0;  // pad, unknown, begin, end
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
  virtual std::int32_t id(const std::string& piece) const = 0;
  virtual std::string piece(std::int32_t id) const = 0;
};

// What the library is asked for. Nothing is thrown across its border.
struct SubwordLibrary {
  // Trains a model by SentencePiece's own argument names. Returns what went wrong, empty if nothing did.
  std::string (*train)(const std::vector<std::string>& sentences,
                       const std::unordered_map<std::string, std::string>& arguments, std::string& model);
  // Null unless `model` is one.
  std::unique_ptr<Subwords> (*load)(const std::string& model);
};

// Loads it on first use, from the folder of the program, the one it was built in, or where the system looks. Throws
// DataError if it is in none. Thread-safe.
const SubwordLibrary& subword_library();

}  // namespace gpipe::data
