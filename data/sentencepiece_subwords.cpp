// The library that subwords.h speaks of: the one file that sees SentencePiece. See Note [Two protobufs].
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "data/subwords.h"

namespace gpipe::data {
namespace {

// What SentencePiece asks for sentences.
class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& sentences) : sentences_(sentences) {}

  bool done() const override { return at_ == sentences_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return sentences_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  std::size_t at_ = 0;
};

class SentencePieceSubwords : public Subwords {
 public:
  bool load(const std::string& model) { return processor_.LoadFromSerializedProto(model).ok(); }

  std::int64_t size() const override { return processor_.GetPieceSize(); }
  std::vector<std::int32_t> special_ids() const override {
    return {processor_.pad_id(), processor_.unk_id(), processor_.bos_id(), processor_.eos_id()};
  }
  std::vector<std::int32_t> encode(const std::string& text) const override { return processor_.EncodeAsIds(text); }
  std::string decode(const std::vector<std::int32_t>& ids) const override { return processor_.DecodeIds(ids); }
  std::int32_t id(const std::string& piece) const override { return processor_.PieceToId(piece); }
  std::string piece(std::int32_t id) const override { return processor_.IdToPiece(id); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

std::string train(const std::vector<std::string>& sentences,
                  const std::unordered_map<std::string, std::string>& arguments, std::string& model) {
  Sentences iterator(sentences);
  const sentencepiece::util::Status status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, &model);
  return status.ok() ? "" : status.ToString();
}

std::unique_ptr<Subwords> load(const std::string& model) {
  auto subwords = std::make_unique<SentencePieceSubwords>();
  if (!subwords->load(model)) return nullptr;
  return subwords;
}

}  // namespace
}  // namespace gpipe::data

extern "C" __attribute__((visibility("default"))) const gpipe::data::SubwordLibrary& gpipe_subword_library() {
  static const gpipe::data::SubwordLibrary library = {gpipe::data::train, gpipe::data::load};
  return library;
}
