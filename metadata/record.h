/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of every column family (FORMAT.md): a version byte, then
 * little-endian numbers. What the key says is not in the value: decoders get
 * it from the caller.
 *
 * Decoders: -EOPNOTSUPP a newer record, -EUCLEAN one that cannot be.
 */
#ifndef CKPT_METADATA_RECORD_H
#define CKPT_METADATA_RECORD_H

#include "metadata/bytes.h"
#include "metadata/metadata.h"

#define RECORD_VERSION 1

#define INODE_LEN 89
#define DENTRY_LEN 21
#define COOKIE_FIXED_LEN 13 /* then the name */
#define NAME_LEN 9
#define VERSION_LEN 49
#define UNSEALED_LEN 21

/* What the key says (ino) is left out. */
void inode_encode(uint8_t b[INODE_LEN], const struct inode_rec *rec);
MUST_CHECK int inode_decode(const void *b, size_t len, uint64_t ino,
			    struct inode_rec *out);

/* All of it. */
void dentry_encode(uint8_t b[DENTRY_LEN], const struct dentry_rec *rec);
MUST_CHECK int dentry_decode(const void *b, size_t len, struct dentry_rec *out);

/* name: META_NAME_MAX + 1 bytes. The cookie is in the key. */
void cookie_encode(uint8_t b[COOKIE_FIXED_LEN], const struct dentry_rec *rec);
MUST_CHECK int cookie_decode(const void *b, size_t len, uint64_t cookie,
			     struct dentry_rec *out, char *name);

/* seq: put there at; 0: by a ckptfs that did not note it. */
void name_encode(uint8_t b[NAME_LEN], uint64_t seq);
MUST_CHECK int name_decode(const void *b, size_t len, uint64_t *seq);

/* Without the id. */
void version_encode(uint8_t b[VERSION_LEN], const struct version_rec *rec);
MUST_CHECK int version_decode(const void *b, size_t len, uint64_t id,
			      struct version_rec *out);

/* Without the inode number. */
void unsealed_encode(uint8_t b[UNSEALED_LEN], const struct unsealed_rec *rec);
MUST_CHECK int unsealed_decode(const void *b, size_t len, uint64_t ino,
			       struct unsealed_rec *out);

/* A failed allocation shows in b. */
void copy_encode(struct bytes *b, const struct copy_rec *rec);
/* *out is the caller's to copy_rec_fini(). Also -ENOMEM. */
MUST_CHECK int copy_decode(const void *b, size_t len, uint64_t version,
			   enum copy_tier tier, struct copy_rec *out);

/*
 * Values that are a version byte and then plain bytes: xattr, symlink,
 * small, note. What is behind the byte, borrowed.
 */
MUST_CHECK int plain_decode(const void *b, size_t len, struct slice *out);

#endif
