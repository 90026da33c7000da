// The proof that engines, which carry the messages between workers, come to the end of their lists, or the
// counter-example. See Note [One engine a worker].
#pragma once

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/message_order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe::detail {

// One engine a worker, numbered like it. REQUIRES: all messages between workers, each once.
MessageEngines one_engine_a_worker(const FlowTable& table, const MessageOrder& order);

// REQUIRES: the schedule runs to its end on unbounded flows; every message between workers is in the lists of its two
// engines once, and each flow's in the order in which they are sent.
Survival survives_engines(const Schedule& schedule, const FlowTable& table, const MessageEngines& engines);

// The same of an order. Throws InvalidArgument unless it has every message between workers once.
Survival survives_one_engine(const Schedule& schedule, const FlowTable& table, const MessageOrder& order);

// REQUIRES: the schedule runs to its end on unbounded flows.
MessageOrder uniform_message_order(const Schedule& schedule, const FlowTable& table);

}  // namespace gpipe::detail
