// Everything a user includes. The part on libtorch comes with the target gpipe::gpipe, which defines GPIPE_WITH_TORCH.
// gpipe/schedule.h, gpipe/pipeline.h and gpipe/checkpoint.h are for those who want less.
#pragma once

#include "gpipe/launch/restart.h"
#include "gpipe/launch/world.h"
#include "gpipe/recording/verification.h"
#include "gpipe/schedule.h"

#ifdef GPIPE_WITH_TORCH
#include "gpipe/checkpoint.h"
#include "gpipe/pipeline.h"
#include "gpipe/verify/verify.h"
#endif
