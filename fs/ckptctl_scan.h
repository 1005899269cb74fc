/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a path, for the commands of ckptctl: a file, or all files in
 * a directory. On a ckptfs mount the daemon is asked for its tables, so that
 * nothing of what is only on the remote is fetched for them; elsewhere the
 * files are read. Tensors of shards that an index beside them speaks for are left
 * out.
 */
#ifndef CKPT_FS_CKPTCTL_SCAN_H
#define CKPT_FS_CKPTCTL_SCAN_H

#include "fs/ckptctl.h"
#include "providers/reader_gather.h"
#include "providers/reader_table.h"

struct ctl_file {
	char *path; /* to be opened */
	char *rel;  /* below what was asked for; "" for that itself */
	struct tensor_table *table;
	bool *covered; /* of each tensor: an index beside it speaks for it */
	bool hidden;   /* of all of them, and there are some */
};

struct ctl_scan {
	struct ctl_file *files; /* in the order of their paths */
	size_t n;
	bool is_dir;
};

/* 0, or CTL_ERROR after a message: nothing is there, or cannot be read. */
MUST_CHECK int ctl_scan(const char *path, struct ctl_scan *out);
/* All zero is fine. */
void ctl_scan_fini(struct ctl_scan *s);

/* Reading the images of one file's tensors: a tensor_open, its arg this. */
struct ctl_reading;
MUST_CHECK int ctl_reading_new(const char *path, struct ctl_reading **out);
void ctl_reading_free(struct ctl_reading *r); /* NULL is fine */
int ctl_reading_open(void *reading, const char *file,
		     struct reader_source *out);

/* "[2, 3]", malloc'ed; NULL: no memory. */
char *ctl_shape(const struct tensor *t);

#endif
