/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a remote shows, as a tree: the whole of it, seen twice alike.
 * Threads: one caller; the tree is his alone once he has it.
 */
#ifndef CKPT_ENGINE_RESTORE_SCAN_H
#define CKPT_ENGINE_RESTORE_SCAN_H

#include <stddef.h>

#include "engine/remote.h"
#include "metadata/metadata.h"

struct node {
	char *name;
	struct remote_attr attr; /* mode 0: not taken over */
	struct node *children;   /* directories; by name */
	size_t n, cap;
	struct inode_rec rec; /* once it is in the namespace */
};

/*
 * Scans until two scans agree, or a few times. Give it back by scan_putp().
 *
 *   -ETIMEDOUT, -EIO …  the remote is down: why says how
 *   -ENOMEM
 */
struct scan;
MUST_CHECK int scan_till_stable(struct remote *r, struct scan **out, char *why,
				size_t why_len);
void scan_putp(struct scan **s); /* NULL in it allowed */
/* The root; its name is NULL. Valid as long as the scan. */
struct node *scan_root(struct scan *s);

#endif
