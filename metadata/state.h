/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `state` family: who a database is, and the watermarks.
 */
#ifndef CKPT_METADATA_STATE_H
#define CKPT_METADATA_STATE_H

#include "metadata/store.h"

#define STATE_FORMAT 1 /* of the whole database */
#define BOOT_ID_LEN 36
#define UUID_LEN 16

struct identity {
	uint64_t epoch;
	/*
	 * Durable only: the epoch of the accepted database that this epoch
	 * was raised from, until that one has been raised too; else 0.
	 */
	uint64_t raised_from;
	uint8_t uuid[UUID_LEN];
	char boot_id[BOOT_ID_LEN];
};

/* Keys of numbers. */
#define STATE_NVME "nvme"     /* D */
#define STATE_REMOTE "remote" /* R */
/* The last transaction of which no event was kept though it may have had
 * one: what is on the remote beside R is unknown up to here. */
#define STATE_GAP "gap"
/* Of the accepted database: its log begins above this, which was D. */
#define STATE_CUT "cut"

/* -ENOENT: a database without one was never finished. */
MUST_CHECK int state_identity(struct store *s, struct identity *out);
void state_put_identity(struct bytes *ops, const struct identity *id);
MUST_CHECK int state_number(struct store *s, const struct snapshot *snap,
			    const char *key, uint64_t *out);
void state_put_number(struct bytes *ops, const char *key, uint64_t n);
/* D, with the store's lock held; 0: not readable. */
uint64_t state_nvme_held(struct store *s, const struct snapshot *snap);

/* A fresh UUID and this boot; epoch 0. -EIO: no randomness, no /proc. */
MUST_CHECK int identity_new(struct identity *out);
/* As the kernel says it, without a newline. */
MUST_CHECK int boot_id_read(char out[BOOT_ID_LEN]);

#endif
