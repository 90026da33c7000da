// Slurm's short forms of lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::detail {

// "n[03-05,7],login" is n03, n04, n05, n7 and login. Throws ParseError, also for more than 65,536 hosts.
std::vector<std::string> expand_slurm_hosts(std::string_view list);

// "4(x2),3" is 4, 4 and 3: this is the one at `node`. Throws ParseError, also if the list is shorter.
int slurm_tasks_of_node(std::string_view list, int node);

}  // namespace gpipe::detail
