/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The renames and links among events, and what a path was called before them.
 * The remote shows the names of R; whoever looks there for a file by its name
 * of today (restore), or for the bytes of one at T (reconcile), goes back
 * through the renames in between. Single thread each.
 */
#ifndef CKPT_ENGINE_MOVES_H
#define CKPT_ENGINE_MOVES_H

#include "metadata/metadata.h"

struct moves { /* all zero: none */
	struct moved *all;
	size_t n, cap;
};

/* Keeps ev if it is a rename, an exchange or a link. Events in order. */
MUST_CHECK int moves_add(struct moves *ms, const struct event *ev);
void moves_fini(struct moves *ms);
/*
 * Calls fn with each name that path had, and with path itself last, until fn
 * returns non-zero, which is then returned. Oldest first: at its newest name
 * there may be what it replaces, and look just like it.
 */
typedef int path_fn(void *arg, const char *path);
MUST_CHECK int moves_back(const struct moves *ms, const char *path, path_fn *fn,
			  void *arg);

#endif
