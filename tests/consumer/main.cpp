// The smallest program that uses gpipe: makes a schedule, proves it, and prints the most activations a worker holds.
#include <gpipe/gpipe.h>

#include <algorithm>
#include <cstdio>

int main() {
  const gpipe::Schedule schedule = gpipe::schedules::one_f_one_b(/*num_workers=*/4, /*num_micro_batches=*/8);
  const gpipe::Certificate certificate = gpipe::validate(schedule);
  const auto& peaks = certificate.peak_activations;
  std::printf("peak activations: %g\n", *std::max_element(peaks.begin(), peaks.end()));
}
