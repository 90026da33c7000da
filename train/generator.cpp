#include "train/generator.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "gpipe/error.h"
#include "models/transformer_lm.h"

namespace gpipe::train {
namespace {

using data::Vocabulary;

std::int64_t choose(at::Tensor logits, const GenerateOptions& options, at::Generator& random) {
  // They are no text.
  for (const std::int32_t special : {Vocabulary::kPad, Vocabulary::kUnknown, Vocabulary::kBegin}) {
    logits[special] = -std::numeric_limits<float>::infinity();
  }
  if (options.temperature == 0) return logits.argmax().item<std::int64_t>();
  std::int64_t count = logits.numel();
  if (options.top_k > 0) count = std::min(count, options.top_k);
  const auto [values, places] = logits.topk(count);
  const at::Tensor scaled = (values.to(at::kDouble) - values.max()) / options.temperature;
  const at::Tensor chosen = at::softmax(scaled, 0).multinomial(1, false, random);
  return places[chosen.item<std::int64_t>()].item<std::int64_t>();
}

}  // namespace

NextLogits logits_of_transformer(const Pipeline& pipeline) {
  const auto decoder = std::make_shared<models::LanguageModelDecoder>(*pipeline);
  const auto state = std::make_shared<models::LanguageModelDecoder::State>();
  return [decoder, state](const at::Tensor& ids, bool begins) {
    if (begins) *state = {};
    return decoder->next_token_logits(ids, *state);
  };
}

NextLogits logits_of_module(const Pipeline& pipeline) {
  const std::shared_ptr<PipelineImpl> model = pipeline.ptr();
  model->eval();
  const auto text = std::make_shared<at::Tensor>();
  return [model, text](const at::Tensor& ids, bool begins) {
    const at::NoGradGuard no_grad;
    *text = begins ? ids : at::cat({*text, ids}, 1);
    return model->forward(*text).select(1, -1);
  };
}

std::string generate(const NextLogits& next_logits, const Vocabulary& vocabulary, const std::string& prompt,
                     std::int64_t max_length, const GenerateOptions& options) {
  if (options.temperature < 0) {
    throw InvalidArgument(fmt::format("a temperature of {}; it must be at least 0", options.temperature));
  }
  at::Generator random = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> tokens = {Vocabulary::kEnd};  // what stands before every line
  std::vector<std::int32_t> line = vocabulary.encode(prompt);
  tokens.insert(tokens.end(), line.begin(), line.end());
  std::string text;
  std::int64_t num_read = 0;
  std::vector<std::int64_t> unread = tokens;
  for (std::int64_t count = 0; count < options.num_tokens; ++count) {
    if (num_read + static_cast<std::int64_t>(unread.size()) > max_length) {
      // The model has no further positions: it goes on from the second half of what it has read.
      unread.assign(tokens.end() - std::min<std::ptrdiff_t>(std::max<std::int64_t>(1, max_length / 2),
                                                            static_cast<std::ptrdiff_t>(tokens.size())),
                    tokens.end());
      num_read = 0;
    }
    const at::Tensor ids = at::tensor(unread, at::kLong).unsqueeze(0);
    const at::Tensor logits = next_logits(ids, /*begins=*/num_read == 0);
    num_read += ids.size(1);
    const std::int64_t token = choose(logits.squeeze(0).to(at::kFloat), options, random);
    tokens.push_back(token);
    unread = {token};
    if (token == Vocabulary::kEnd) {
      text += vocabulary.decode(line) + "\n";
      line.clear();
    } else {
      line.push_back(static_cast<std::int32_t>(token));
    }
  }
  return text + vocabulary.decode(line);
}

}  // namespace gpipe::train
