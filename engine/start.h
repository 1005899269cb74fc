/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of engine_start(), each in the file of its subject. One that fails
 * says why in words; engine_start() takes back what was done.
 *
 * Threads: that of engine_start(); state_dir_say() also that of engine_stop().
 */
#ifndef CKPT_ENGINE_START_H
#define CKPT_ENGINE_START_H

#include <stddef.h>

#include "metadata/compiler.h"

struct engine;

struct start {
	struct engine *e;
	char *why; /* one line, the first reason; "" so far */
	size_t why_len;
};

/* Writes why, unless there is a reason already. Returns err. */
int PRINTF(3, 4) start_fail(struct start *s, int err, const char *fmt, ...);

/* -EINTR if nobody wants it any more; asked before each step, and in one that
 * waits. */
MUST_CHECK int start_goes_on(struct start *s);

/* ---- state_dir.c ------------------------------------------------------ */

/* nvme= is there, locked, and says "mounted". Waits while the last mount of it
 * drains; -EBUSY: in use. */
MUST_CHECK int state_dir_open(struct start *s);
/* Names the mount's DRAM place; made once, kept in the directory. */
MUST_CHECK int state_dir_id(struct start *s, char id[33]);
/* "mounted" or "draining", for who finds it locked. */
void state_dir_say(struct engine *e, const char *state);
/* A directory of ours and all above it. -errno */
MUST_CHECK int state_dir_make(const char *path);

/* ---- start_remote.c --------------------------------------------------- */

/* Attached, or down (no reason not to mount); and its fetcher. */
MUST_CHECK int start_remote(struct start *s);
/* What a remote holds comes into a fresh namespace. */
MUST_CHECK int start_import(struct start *s);

#endif
