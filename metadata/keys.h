/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of every column family (FORMAT.md). Numbers in keys are
 * big-endian, so that RocksDB's byte order is theirs.
 */
#ifndef CKPT_METADATA_KEYS_H
#define CKPT_METADATA_KEYS_H

#include "metadata/bytes.h"
#include "metadata/metadata.h"

struct key {
	size_t len;
	uint8_t b[16 + META_NAME_MAX + 1];
};

/* number: inode, version, symlink, orphan, unsealed, small, log, event */
void key_number(struct key *k, uint64_t n);
/* number, number: cookie */
void key_pair(struct key *k, uint64_t a, uint64_t b);
/* number, name: dentry, xattr. -ENAMETOOLONG, -EINVAL: empty. */
MUST_CHECK int key_named(struct key *k, uint64_t n, const char *name);
/* inode, parent, name: name. As above. */
MUST_CHECK int key_link(struct key *k, uint64_t ino, uint64_t parent,
			const char *name);
/* version, tier: copy */
void key_copy(struct key *k, uint64_t version, enum copy_tier tier);

static inline struct slice key_slice(const struct key *k)
{
	return (struct slice){ k->b, k->len };
}

/* The bytes of a key behind its first n, as a NUL-ended name; -EUCLEAN. */
MUST_CHECK int key_tail(const void *key, size_t klen, size_t n,
			char name[META_NAME_MAX + 1]);

#endif
