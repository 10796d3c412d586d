/* SPDX-License-Identifier: Apache-2.0 */
/* Names and switches of the steps and mutants (step.h); linked into test builds only. */
#include "shm/step.h"

#ifdef SLAB_STEPS
#define STEP_NAME(x) #x,

void (*step_hook)(enum step step);
enum mutant step_mutant;
const char *const step_names[STEP_COUNT] = {STEP_LIST(STEP_NAME)};
const char *const step_mutant_names[MUTANT_COUNT] = {"NONE", MUTANT_LIST(STEP_NAME)};
#endif
