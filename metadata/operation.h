/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: what one batch does to a database, in our own bytes, so that
 * the same run of bytes is written to the accepted database, stands in its
 * log, and is replayed on the durable one (FORMAT.md, "log").
 */
#ifndef CKPT_METADATA_OPERATION_H
#define CKPT_METADATA_OPERATION_H

#include "metadata/bytes.h"

/* Column families; the numbers are on disk, in the log. */
enum cf {
	CF_INODE = 0,
	CF_DENTRY = 1,
	CF_COOKIE = 2,
	CF_NAME = 3,
	CF_VERSION = 4,
	CF_XATTR = 5,
	CF_SYMLINK = 6,
	CF_ORPHAN = 7,
	CF_N_SHARED = 8, /* those before are the same in both, as of D */
	CF_STATE = 8,    /* in both, but each its own */
	CF_UNSEALED = 9, /* accepted only */
	CF_LOG = 10,     /* accepted only */
	CF_COPY = 11,    /* durable only, as those to CF_NOTE */
	CF_SMALL = 12,
	CF_EVENT = 13,
	CF_NOTE = 14,
	CF_TENSOR = 15, /* accepted only */
	CF_MAX = 16,
};

enum op_kind { OP_PUT = 1, OP_DEL = 2, OP_DEL_RANGE = 3 };

struct op {
	enum op_kind kind;
	enum cf cf;
	struct slice key;
	struct slice val; /* DEL_RANGE: the first key that is kept */
};

/* A failed allocation shows in b. */
void op_put(struct bytes *b, enum cf cf, struct slice key, const void *val,
	    size_t len);
/* The same with room for the value, to be filled; NULL: no memory. */
uint8_t *op_put_room(struct bytes *b, enum cf cf, struct slice key, size_t len);
void op_del(struct bytes *b, enum cf cf, struct slice key);
void op_del_range(struct bytes *b, enum cf cf, struct slice from,
		  struct slice to);

/* The next of r; -EUCLEAN if the bytes are none. Not at r's end. */
MUST_CHECK int op_next(struct reader *r, struct op *out);

#endif
