// Models by name, and what a wrong name or size is answered with.
#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gpipe::test {
namespace {

using models::ImageModelOptions;
using models::language_model_options;
using models::make_image_model;
using models::translation_model_options;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Function>
std::string message(const Function& function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

std::string image_error(const std::string& spec) {
  return message([&] { make_image_model(spec); });
}

TEST(ModelRegistry, MakesImageModelsOfTheGivenSizes) {
  EXPECT_EQ(num_parameters(make_image_model("amoebanet-d:18,256", ImageModelOptions().num_classes(1000))), 122'470'120);
  EXPECT_EQ(num_parameters(make_image_model("resnet-cifar:20")), 269'722);
  EXPECT_EQ(num_parameters(make_image_model("resnet18", ImageModelOptions().num_classes(1000))), 11'689'512);
  EXPECT_EQ(make_image_model("resnet101").size(), 370);
  EXPECT_EQ(make_image_model("amoebanet-d:3,32,1,0", ImageModelOptions().in_channels(1)).size(), 7);
}

TEST(ModelRegistry, KnowsTheCifarResNetsByTheNamesOfTheirWeights) {
  const std::map<std::string, std::int64_t> counts = {
      {"resnet20", 269'722}, {"resnet32", 464'154}, {"resnet44", 658'586}, {"resnet56", 853'018}};
  for (const auto& [name, count] : counts) EXPECT_EQ(num_parameters(make_image_model(name)), count) << name;
}

TEST(ModelRegistry, MakesOptionsOfTransformers) {
  const auto lm = language_model_options("transformer-lm:3,2048,8192,32", 32000);
  EXPECT_EQ(num_parameters(models::transformer_lm(lm)), 282'182'912);
  const auto translation = translation_model_options("t:6,8192,16,512", 100);
  EXPECT_EQ(translation.num_layers(), 6);
  EXPECT_EQ(translation.feed_forward_width(), 8192);
  EXPECT_EQ(translation.num_heads(), 16);
  EXPECT_EQ(translation.width(), 512);
  EXPECT_EQ(translation.vocabulary_size(), 100);
  EXPECT_EQ(translation_model_options("t:6,8192,16", 100).width(), 1024);
}

TEST(ModelRegistry, AnUnknownNameIsAnsweredWithThoseOfTheTask) {
  EXPECT_EQ(image_error("resnet19"),
            "there is no model \"resnet19\" for this task; there are amoebanet-d:L,D[,STRIDE[,REDUCTIONS]], resnet18, "
            "resnet50, resnet101, resnet20, resnet32, resnet44, resnet56, resnet-cifar:DEPTH");
  EXPECT_THAT(image_error("t:1,2,3"), HasSubstr("no model \"t\" for this task"));
  EXPECT_THAT(message([] { language_model_options("resnet18", 10); }), HasSubstr("transformer-lm:L,WIDTH,FFN,HEADS"));
}

TEST(ModelRegistry, KnowsWhatAModelIsFor) {
  EXPECT_EQ(models::task_of("resnet18"), models::Task::kImage);
  EXPECT_EQ(models::task_of("transformer-lm:1,2,3,4"), models::Task::kLanguage);
  EXPECT_EQ(models::task_of("t:1,2,3"), models::Task::kTranslation);
  EXPECT_THAT(message([] { models::task_of("tt:1"); }), AllOf(HasSubstr("no model \"tt\""), HasSubstr("resnet18"),
                                                              HasSubstr("transformer-lm:L"), HasSubstr("t:L,H,A")));
}

TEST(ModelRegistry, WrongSizesAreAnsweredWithTheUsage) {
  EXPECT_EQ(image_error("resnet-cifar"), "\"resnet-cifar\" has 0 sizes; write resnet-cifar:DEPTH");
  EXPECT_EQ(image_error("resnet18:3"), "\"resnet18:3\" has 1 sizes; write resnet18");
  EXPECT_EQ(image_error("resnet-cifar:"), "\"\" is not a size from 0 to 1000000; write resnet-cifar:DEPTH");
  EXPECT_EQ(image_error("resnet-cifar:20x"), "\"20x\" is not a size from 0 to 1000000; write resnet-cifar:DEPTH");
  EXPECT_THAT(image_error("amoebanet-d:3,,8"), HasSubstr("\"\" is not a size"));
  EXPECT_THAT(image_error("amoebanet-d:3,-8"), HasSubstr("\"-8\" is not a size"));
  EXPECT_THAT(image_error("amoebanet-d:99999999999999999999,8"), HasSubstr("is not a size"));
  EXPECT_THAT(image_error("amoebanet-d:3,1000001"), HasSubstr("\"1000001\" is not a size from 0 to 1000000"));
  EXPECT_EQ(image_error("resnet-cifar:100004"),
            "the depth of \"resnet-cifar:100004\" is 100004; it must be at most 100000");
}

TEST(ModelRegistry, SizesTheModelRefusesSayWhy) {
  EXPECT_EQ(image_error("amoebanet-d:4,32"), "num_layers is 4; it must be a multiple of 3");
}

TEST(ModelRegistry, ListsEveryModel) {
  EXPECT_EQ(models::model_names().size(), 11);
  for (const models::ModelName& name : models::model_names()) EXPECT_FALSE(name.description.empty()) << name.usage;
}

}  // namespace
}  // namespace gpipe::test
