// Message order: one order of all messages that workers send each other in a step, for transports on which a worker
// can do only one of them at a time.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {

// A message from one worker to another.
struct FlowMessage {
  int flow = 0;         // of make_flow_table
  int micro_batch = 0;  // of a tie, which has one message a step, 0
};

inline bool operator==(const FlowMessage& a, const FlowMessage& b) {
  return a.flow == b.flow && a.micro_batch == b.micro_batch;
}
inline bool operator!=(const FlowMessage& a, const FlowMessage& b) { return !(a == b); }

// All messages of a step between different workers, each once.
using MessageOrder = std::vector<FlowMessage>;

// Note [One engine a worker]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// On some transports the messages of a worker go through one engine, which does one at a time and spins until the other
// end does the same one: NCCL on one communicator and one stream is such a transport. Flows have no capacity there, and
// a message never overtakes another. What remains to be chosen is the order of each worker's list of messages, sent and
// received. In the order of its own program nearly every schedule gets stuck; in one order of all messages, of which
// each worker's list is the part that it sends or receives, none does.
//
// The game is the strictest that a program may rely on: a worker puts a message and waits until it has been carried;
// it is carried when it is the next one of both lists and was put.
//
// Theorem. A worker's list is fit for its program if every message m that the worker puts, in an action p, comes
//   1. after all that the worker puts before m, in earlier actions or in p, and
//   2. after all that the worker takes until then, for earlier actions and for p.
// Lists that are parts of one order run to their end, for any timing, if and only if all of them are fit.
//
// Proof. If: by induction along the order. Let all messages before m have been carried. The worker that puts m gets to
// p, since by 2 what it takes until then has been carried, and to m, since by 1 what it puts until then has been, too.
// All that comes before m in either list comes before m in the order, so m is the next one of both, and is carried.
// When all messages have been carried nobody waits. Only if: where 1 is broken, a worker waits for its engine to carry
// what it has put, and the engine has m before that, which the worker puts later. Where 2 is broken, the worker waits
// for what it takes, and its engine has m before that.
//
// So a message never depends on later work of its own worker: the engine may spin on the device that computes, needs no
// other stream to make progress, and survives whatever stops the device for a moment. A transport that is less strict,
// such as one on which a sender goes on at once, waits for less, so it gets to its end, too.
// An engine may do a message as soon as it can, or, like a worker without one, do the messages of its list up to m only
// when the worker comes to m: in a fit list what comes before m is then either put already or to be received.
//
// Corollaries. The order in which the messages are put in any finished token game is fit: a worker puts as its program
// says, and puts m behind all it has taken. So one exists for every schedule that has been proven, and what the actions
// were thought to cost when it was made decides how long a step takes, never whether it ends. The part of an order that
// belongs to forwards is fit for a step of forwards only, and the rest for the backwards behind them, since fitness is
// about pairs of messages.

// The order in which the messages are put if the actions of each worker's share cost F = 1, B = 2, I = W = R = 1, and
// messages nothing; `message_order` in gpipe/simulate/simulate.h is for other costs. Messages of one time come in the
// order in which the token game puts them, which is the same on every rank.
//
// Throws ScheduleError for a schedule that is wrong, InvalidArgument for routes that are.
MessageOrder message_order(const Schedule& schedule, const Routes& routes = {});

// The list of each worker: the messages that it sends or receives, in this order.
std::vector<MessageOrder> messages_by_worker(const MessageOrder& order, const FlowTable& table);

// Whether a step runs to its end for any timing if every worker carries its messages in this order, one at a time. If
// not, what waits for each other.
//
// Throws InvalidArgument unless the order has every message between workers once, otherwise as `message_order` does.
Survival survives_one_engine(const Schedule& schedule, const Routes& routes, const MessageOrder& order);

// "activation 0 -> 1 of micro-batch 2", "tie 3 -> 0".
std::string to_string(const FlowTable& table, const FlowMessage& message);

// One line a message. Two orders are the same if and only if their texts are.
std::string to_text(const FlowTable& table, const MessageOrder& order);

}  // namespace gpipe
