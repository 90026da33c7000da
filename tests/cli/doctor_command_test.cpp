#include "cli/doctor_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DoctorCommand, DescribesTheMachineAndTheBuild) {
  const Outcome outcome = run_gpipe({"doctor"});
  for (const char* part : {"gpipe", "version", "built with", "system", "processor", "cores", "memory", "libtorch",
                           "blas", "gloo", "cmake", "ninja", "ccache", "g++", "clang-format"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  const bool complete =
      outcome.out.find("  missing ") == std::string::npos && outcome.out.find("  wrong ") == std::string::npos;
  EXPECT_EQ(outcome.exit_code, complete ? 0 : 1);
}

TEST(DoctorCommand, NamesThePackageOfAMissingTool) {
  const Outcome outcome = run_gpipe({"doctor"}, "", {"PATH=/no/such/folder"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("missing   cmake"));
  EXPECT_THAT(outcome.out, HasSubstr("apt-get install cmake"));
  EXPECT_THAT(outcome.out, HasSubstr("optional  ccache"));
  EXPECT_THAT(outcome.err, HasSubstr("gpipe: not ready for training: cmake, g++"));
}

TEST(DoctorCommand, PaintsTheMarksOnATerminal) {
  EXPECT_THAT(run_gpipe_on_terminal({"doctor"}, 80).out, HasSubstr("\x1b["));
  EXPECT_THAT(run_gpipe_on_terminal({"doctor"}, 80, {"NO_COLOR=1"}).out, Not(HasSubstr("\x1b")));
}

TEST(DoctorCommand, IsContentWithOpenBlasOnOpenMp) {
  const Check check = check_blas("/usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3");
  EXPECT_EQ(check.finding, Finding::kOk);
  EXPECT_EQ(check.advice, "");
}

TEST(DoctorCommand, RefusesABlasThatIsWrongOrFarTooSlow) {
  const Check serial = check_blas("/usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3");
  EXPECT_EQ(serial.finding, Finding::kWrong);
  EXPECT_THAT(serial.detail, HasSubstr("not thread-safe"));
  const Check reference = check_blas("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0");
  EXPECT_EQ(reference.finding, Finding::kWrong);
  EXPECT_THAT(reference.detail, HasSubstr("reference BLAS"));
  const Check none = check_blas("");
  EXPECT_EQ(none.finding, Finding::kMissing);
  for (const Check& check : {serial, reference, none}) EXPECT_THAT(check.advice, HasSubstr("libopenblas0-openmp"));
}

TEST(DoctorCommand, WarnsOfABlasThatIsSlowOrUnknown) {
  const Check pthread = check_blas("/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3");
  EXPECT_EQ(pthread.finding, Finding::kWarning);
  EXPECT_THAT(pthread.advice, HasSubstr("libopenblas0-openmp"));
  EXPECT_EQ(check_blas("/opt/atlas/libsomething.so").finding, Finding::kWarning);
}

}  // namespace
}  // namespace gpipe::cli
