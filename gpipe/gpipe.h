// Everything a user includes.
#pragma once

#include "gpipe/error.h"
#include "gpipe/plan/partition.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/profile.h"
#include "gpipe/report/chrome_trace.h"
#include "gpipe/report/gantt.h"
#include "gpipe/report/svg.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"
