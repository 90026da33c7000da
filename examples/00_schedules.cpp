// A schedule is made, proven, simulated and drawn; then one that deadlocks is refused.
//
//   build/bin/00_schedules
//
// prints the chart of a 1F1B step, "bubble 27.3 %", and the cycle of the second schedule, one edge a line.
#include <gpipe/gpipe.h>

#include <cstdio>

int main() {
  const gpipe::Schedule schedule = gpipe::schedules::one_f_one_b(/*num_workers=*/4, /*num_micro_batches=*/8);
  const gpipe::Certificate certificate = gpipe::validate(schedule);  // throws, with the counter-example, if it is wrong
  const gpipe::Timeline timeline = gpipe::simulate(schedule, gpipe::uniform_costs(schedule));

  std::printf("%s\n", gpipe::to_gantt(timeline).c_str());
  std::printf("bubble %.1f %%, canonical: %s, worker 0 holds up to %.0f micro-batches\n\n",
              100 * timeline.bubble_fraction, certificate.canonical ? "yes" : "no", certificate.peak_activations[0]);

  try {
    gpipe::validate(
        gpipe::parse_schedule("F0 B0 F1 B1\n"
                              "F0 F1 B0 B1\n"));
  } catch (const gpipe::ScheduleError& error) {
    std::printf("%s\n", error.what());
  }
}
