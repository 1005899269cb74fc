/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place in the tree where the filesystem goes: can it be mounted there,
 * is something dead in the way, and taking it away again.
 */
#ifndef CKPT_FS_MOUNTPOINT_H
#define CKPT_FS_MOUNTPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/options.h"
#include "metadata/compiler.h"

/*
 * Everything that can be known before anything is started: the directory is
 * there, /dev/fuse is, our rights suffice. A dead FUSE mount in the way is
 * taken away.
 *
 *   -errno  why is one line that names the thing and the remedy
 */
MUST_CHECK int mountpoint_prepare(const struct options *o, char *why,
				  size_t why_len);

/* What is mounted there on top. */
struct mounted {
	unsigned major, minor; /* as in st_dev */
	bool ckptfs;
};
/* -ENOENT: nothing. Reads /proc/self/mountinfo; never blocks on a mount. */
MUST_CHECK int mountpoint_find(const char *path, struct mounted *out);

/*
 * umount(2), or fusermount3 for ordinary users, of `own`. lazy: also while
 * files are open, which stay usable.
 *
 *   -EBUSY   files are open
 *   -ENOENT  `own` is not what is there on top; others' is left alone
 */
MUST_CHECK int mountpoint_unmount(const char *path, const struct mounted *own,
				  bool lazy);

#endif
