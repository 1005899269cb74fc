/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that the tensors of one file lie in: itself, or for a sharded
 * checkpoint its shards. Each is pinned to the version that it had when it was
 * first asked for; a source of it is open only while it is read, and a few
 * after that.
 *
 * Threads: any; adding only one at a time (a set that grows is its maker's).
 */
#ifndef CKPT_ENGINE_SOURCE_SET_H
#define CKPT_ENGINE_SOURCE_SET_H

#include "engine/source.h"

struct pin {
	char *file; /* as a piece names it; NULL: the file itself */
	uint64_t ino, version;
};

struct source_set;

/*
 * A set with these pins (copied). grows: files beside `ino` that are not
 * among them are looked up and added, as they are now.
 */
MUST_CHECK int source_set_new(struct engine *e, uint64_t ino,
			      const struct pin *pins, size_t n, bool grows,
			      struct source_set **out);
/* NULL is fine. */
void source_set_free(struct source_set *set);

/*
 * A tensor_open, its arg the set.
 *
 *   -ENOENT  not among the pins; or no such file, or one without a version
 */
MUST_CHECK int source_set_open(void *set, const char *file,
			       struct reader_source *out);

/* Opens that file, so that what it holds now stays readable. As
 * source_set_open(), and as source_open(). */
MUST_CHECK int source_set_hold(struct source_set *set, const char *file);

/* The pins, borrowed, until the next source_set_open(). */
const struct pin *source_set_pins(const struct source_set *set, size_t *n);

/* Which file that is now, beside ino. -ENOENT */
MUST_CHECK int pin_look_up(struct engine *e, uint64_t ino, const char *file,
			   struct pin *out);

#endif
