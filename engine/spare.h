/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this machine, and the cgroup we are in, can still give
 * away without hurting what runs beside us.
 */
#ifndef CKPT_ENGINE_SPARE_H
#define CKPT_ENGINE_SPARE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Bytes that may still be taken. why: who sets the bound ("the machine has
 * 3100 MiB available, and 1205 MiB must stay free"). Any thread; about 50 µs.
 */
uint64_t spare_memory(char *why, size_t why_len);
/* RAM of the machine, or the cgroup's limit if that is less. */
uint64_t spare_total(void);

#endif
