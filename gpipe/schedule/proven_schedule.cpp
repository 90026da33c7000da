#include "gpipe/schedule/proven_schedule.h"

#include <utility>

#include "gpipe/schedule/validate.h"

namespace gpipe {

std::shared_ptr<const ProvenSchedule> prove(Schedule schedule, const Routes& routes) {
  ValidateOptions options;
  options.routes = routes;
  auto proven = std::make_shared<ProvenSchedule>();
  for (const FlowCertificate& flow : validate(schedule, options).flows) {
    proven->capacities.push_back(flow.free_capacity.value_or(flow.live_capacity));
  }
  proven->table = make_flow_table(schedule, routes);
  proven->schedule = std::move(schedule);
  return proven;
}

}  // namespace gpipe
