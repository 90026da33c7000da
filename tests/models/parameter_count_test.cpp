// Every model of the reference results has exactly its number of parameters; counted without their memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/resnet_cifar.h"
#include "models/transformer_lm.h"
#include "models/translation_transformer.h"
#include "models/unet.h"

namespace gpipe::test {
namespace {

using namespace gpipe::models;  // NOLINT(google-build-using-namespace)

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * std::int64_t{1024};
}

TEST(ParameterCount, AmoebaNetDHasThatOfEveryRowOfThePaper) {
  const auto count = [](int layers, int filters) {
    return num_parameters(amoebanet_d(AmoebaNetOptions(layers, filters)));
  };
  EXPECT_EQ(count(18, 208), 81'505'540);
  EXPECT_EQ(count(18, 256), 122'470'120);
  EXPECT_EQ(count(18, 416), 319'024'120);
  EXPECT_EQ(count(18, 544), 542'734'840);
  EXPECT_EQ(count(36, 544), 1'055'832'376);
  EXPECT_EQ(count(72, 512), 1'844'858'344);
}

TEST(ParameterCount, AmoebaNetDHasSixLayersBesidesItsNormalCells) {
  EXPECT_EQ(amoebanet_d(AmoebaNetOptions(18, 256)).size(), 24);
  EXPECT_EQ(amoebanet_d(AmoebaNetOptions(18, 256).stem_reductions(1)).size(), 23);
}

TEST(ParameterCount, UNetHasThatOfEveryRow) {
  const auto count = [](int convs, int channels) { return num_parameters(unet(UNetOptions(5, convs, channels))); };
  EXPECT_EQ(count(5, 64), 232'687'328);
  EXPECT_EQ(count(6, 72), 362'157'516);
  EXPECT_EQ(count(11, 128), 2'213'834'176);
  EXPECT_EQ(count(24, 128), 4'993'859'008);
  EXPECT_EQ(count(24, 160), 7'802'903'600);
  EXPECT_EQ(count(48, 160), 15'822'206'000);
}

TEST(ParameterCount, UNetOfFiveLevelsAndFiveConvolutionsHas241Layers) {
  EXPECT_EQ(unet(UNetOptions(5, 5, 64)).size(), 241);
}

TEST(ParameterCount, ResNetsHaveThoseOfThePublicOnes) {
  EXPECT_EQ(num_parameters(resnet18()), 11'689'512);
  EXPECT_EQ(num_parameters(resnet50()), 25'557'032);
  EXPECT_EQ(num_parameters(resnet101()), 44'549'160);
  EXPECT_EQ(num_parameters(resnet101(10)), 42'520'650);
  EXPECT_EQ(resnet18().size(), 71);
  EXPECT_EQ(resnet50().size(), 183);
  EXPECT_EQ(resnet101().size(), 370);
}

TEST(ParameterCount, CifarResNetsHaveThoseOfThePublicOnes) {
  EXPECT_EQ(num_parameters(resnet_cifar(20)), 269'722);
  EXPECT_EQ(num_parameters(resnet_cifar(32)), 464'154);
  EXPECT_EQ(num_parameters(resnet_cifar(44)), 658'586);
  EXPECT_EQ(num_parameters(resnet_cifar(56)), 853'018);
  EXPECT_EQ(resnet_cifar(20).size(), 77);
}

TransformerLmOptions transformer_l(std::int64_t num_layers) {
  return TransformerLmOptions(32000, num_layers).width(2048).feed_forward_width(8192).num_heads(32);
}

TEST(ParameterCount, TransformerWithoutBiasesAndNormParametersFollowsTheFormula) {
  for (const std::int64_t layers : {3, 13, 103, 415, 1663}) {
    const std::int64_t d = 2048;
    EXPECT_EQ(num_parameters(transformer_lm(transformer_l(layers).bias(false).norm_parameters(false))),
              layers * (4 * d * d + 2 * d * 8192) + 2 * 32000 * d);
  }
}

TEST(ParameterCount, TransformerWithThemHasThePaperSFiguresToEveryDigitItPrints) {
  const auto count = [](std::int64_t layers) { return num_parameters(transformer_lm(transformer_l(layers))); };
  EXPECT_EQ(count(3), 282'182'912);        // 282.2M
  EXPECT_EQ(count(13), 785'765'632);       // 785.8M
  EXPECT_EQ(count(103), 5'318'010'112);    // 5.3B
  EXPECT_EQ(count(415), 21'029'790'976);   // 21.0B
  EXPECT_EQ(count(1663), 83'876'914'432);  // 83.9B
}

TEST(ParameterCount, TyingTheHeadSavesOneTable) {
  const std::int64_t untied = num_parameters(transformer_lm(transformer_l(3)));
  EXPECT_EQ(num_parameters(transformer_lm(transformer_l(3).tie_embeddings(true))), untied - 32000 * 2048);
}

TEST(ParameterCount, LearntPositionsAreATableMore) {
  const std::int64_t without = num_parameters(transformer_lm(transformer_l(3)));
  EXPECT_EQ(num_parameters(transformer_lm(transformer_l(3).learnt_positions(true).max_length(77))),
            without + 77 * 2048);
}

TEST(ParameterCount, TranslationTransformersHaveThePaperSSizes) {
  EXPECT_EQ(num_parameters(translation_transformer(TranslationTransformerOptions(6, 8192, 16))), 342'673'920);
  const auto billions = [](std::int64_t layers, std::int64_t width, std::int64_t heads) {
    return static_cast<double>(num_parameters(translation_transformer(
               TranslationTransformerOptions(layers, width, heads).head_width(64).tie_embeddings(false)))) /
           1e9;
  };
  EXPECT_NEAR(billions(24, 8192, 16), 1.3, 0.05);
  EXPECT_NEAR(billions(12, 16384, 32), 1.3, 0.05);
  EXPECT_NEAR(billions(32, 16384, 32), 3, 0.5);
  EXPECT_NEAR(billions(64, 16384, 32), 6, 0.5);
}

TEST(ParameterCount, ALayerOfAGigabyteIsBuiltWithoutTouchingItsMemory) {
  num_parameters(resnet_cifar(8));  // what libtorch needs at its first use
  LayerChain chain;
  chain.add<torch::nn::Linear>("huge", 16384, 16384);
  const std::int64_t before = peak_resident_bytes();
  EXPECT_EQ(num_parameters(chain), 16384 * 16385);
  EXPECT_LT(peak_resident_bytes() - before, 64 << 20);
}

}  // namespace
}  // namespace gpipe::test
