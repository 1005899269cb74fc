/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records, encoded and decoded. The structs of metadata.h never reach the
 * disk: each field is put at its place by hand, so that neither padding nor
 * a new field changes a format.
 */
#include "metadata/record.h"

#include <errno.h>

#define NS_PER_S INT64_C(1000000000)

int64_t ns_of_timespec(struct timespec ts)
{
	int64_t ns;

	if (__builtin_mul_overflow(ts.tv_sec, NS_PER_S, &ns) ||
	    __builtin_add_overflow(ns, ts.tv_nsec, &ns))
		return ts.tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

struct timespec timespec_of_ns(int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_S,
			       .tv_nsec = ns % NS_PER_S };

	if (ts.tv_nsec < 0) {
		ts.tv_nsec += NS_PER_S;
		ts.tv_sec--;
	}
	return ts;
}

static int check_fixed(const uint8_t *b, size_t len, size_t want)
{
	if (len < 1)
		return -EUCLEAN;
	if (b[0] > RECORD_VERSION)
		return -EOPNOTSUPP;
	return len == want ? 0 : -EUCLEAN;
}

void inode_encode(uint8_t b[INODE_LEN], const struct inode_rec *r)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, r->mode, 4);
	put_le(b + 5, r->uid, 4);
	put_le(b + 9, r->gid, 4);
	put_le(b + 13, r->nlink, 4);
	put_le(b + 17, r->rdev, 8);
	put_le(b + 25, r->size, 8);
	put_le(b + 33, r->blocks, 8);
	put_le(b + 41, (uint64_t)r->atime_ns, 8);
	put_le(b + 49, (uint64_t)r->mtime_ns, 8);
	put_le(b + 57, (uint64_t)r->ctime_ns, 8);
	put_le(b + 65, r->version, 8);
	put_le(b + 73, r->parent, 8);
	put_le(b + 81, r->seq, 8);
}

int inode_decode(const void *rec, size_t len, uint64_t ino,
		 struct inode_rec *out)
{
	const uint8_t *b = rec;
	int err = check_fixed(b, len, INODE_LEN);

	if (err)
		return err;
	*out = (struct inode_rec){
		.ino = ino,
		.mode = (uint32_t)get_le(b + 1, 4),
		.uid = (uint32_t)get_le(b + 5, 4),
		.gid = (uint32_t)get_le(b + 9, 4),
		.nlink = (uint32_t)get_le(b + 13, 4),
		.rdev = get_le(b + 17, 8),
		.size = get_le(b + 25, 8),
		.blocks = get_le(b + 33, 8),
		.atime_ns = (int64_t)get_le(b + 41, 8),
		.mtime_ns = (int64_t)get_le(b + 49, 8),
		.ctime_ns = (int64_t)get_le(b + 57, 8),
		.version = get_le(b + 65, 8),
		.parent = get_le(b + 73, 8),
		.seq = get_le(b + 81, 8),
	};
	return 0;
}

void dentry_encode(uint8_t b[DENTRY_LEN], const struct dentry_rec *r)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, r->ino, 8);
	put_le(b + 9, r->cookie, 8);
	put_le(b + 17, r->type, 4);
}

int dentry_decode(const void *rec, size_t len, struct dentry_rec *out)
{
	const uint8_t *b = rec;
	int err = check_fixed(b, len, DENTRY_LEN);

	if (err)
		return err;
	*out = (struct dentry_rec){
		.ino = get_le(b + 1, 8),
		.cookie = get_le(b + 9, 8),
		.type = (uint32_t)get_le(b + 17, 4),
	};
	return 0;
}

void name_encode(uint8_t b[NAME_LEN], uint64_t seq)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, seq, 8);
}

int name_decode(const void *rec, size_t len, uint64_t *seq)
{
	const uint8_t *b = rec;
	int err = len ? check_fixed(b, len, NAME_LEN) : 0;

	if (!err)
		*seq = len ? get_le(b + 1, 8) : 0;
	return err;
}

void cookie_encode(uint8_t b[COOKIE_FIXED_LEN], const struct dentry_rec *r)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, r->ino, 8);
	put_le(b + 9, r->type, 4);
}

int cookie_decode(const void *rec, size_t len, uint64_t cookie,
		  struct dentry_rec *out, char *name)
{
	const uint8_t *b = rec;
	size_t n;

	if (len < 1)
		return -EUCLEAN;
	if (b[0] > RECORD_VERSION)
		return -EOPNOTSUPP;
	if (len <= COOKIE_FIXED_LEN || len > COOKIE_FIXED_LEN + META_NAME_MAX)
		return -EUCLEAN;
	n = len - COOKIE_FIXED_LEN;
	memcpy(name, b + COOKIE_FIXED_LEN, n);
	name[n] = '\0';
	*out = (struct dentry_rec){
		.ino = get_le(b + 1, 8),
		.cookie = cookie,
		.type = (uint32_t)get_le(b + 9, 4),
	};
	return 0;
}

void version_encode(uint8_t b[VERSION_LEN], const struct version_rec *r)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, r->ino, 8);
	put_le(b + 9, r->size, 8);
	put_le(b + 17, r->blocks, 8);
	put_le(b + 25, r->backing, 8);
	put_le(b + 33, r->where, 4);
	put_le(b + 37, r->flags, 4);
	put_le(b + 41, r->seq, 8);
}

int version_decode(const void *rec, size_t len, uint64_t id,
		   struct version_rec *out)
{
	const uint8_t *b = rec;
	int err = check_fixed(b, len, VERSION_LEN);

	if (err)
		return err;
	*out = (struct version_rec){
		.id = id,
		.ino = get_le(b + 1, 8),
		.size = get_le(b + 9, 8),
		.blocks = get_le(b + 17, 8),
		.backing = get_le(b + 25, 8),
		.where = (uint32_t)get_le(b + 33, 4),
		.flags = (uint32_t)get_le(b + 37, 4),
		.seq = get_le(b + 41, 8),
	};
	return 0;
}

void unsealed_encode(uint8_t b[UNSEALED_LEN], const struct unsealed_rec *r)
{
	b[0] = RECORD_VERSION;
	put_le(b + 1, r->backing, 8);
	put_le(b + 9, r->where, 4);
	put_le(b + 13, r->base, 8);
}

int unsealed_decode(const void *rec, size_t len, uint64_t ino,
		    struct unsealed_rec *out)
{
	const uint8_t *b = rec;
	int err = check_fixed(b, len, UNSEALED_LEN);

	if (err)
		return err;
	*out = (struct unsealed_rec){
		.ino = ino,
		.backing = get_le(b + 1, 8),
		.where = (uint32_t)get_le(b + 9, 4),
		.base = get_le(b + 13, 8),
	};
	return 0;
}

void copy_encode(struct bytes *b, const struct copy_rec *c)
{
	size_t object_len = strnlen(c->object, sizeof(c->object) - 1);

	add_u8(b, RECORD_VERSION);
	add_u8(b, (uint8_t)c->kind);
	add_u8(b, c->verified);
	add_u8(b, (uint8_t)object_len);
	add_le(b, c->file, 8);
	add_le(b, c->size, 8);
	add_le(b, c->chunk_len, 4);
	add_le(b, c->n_chunks, 4);
	bytes_append(b, c->object, object_len);
	for (uint32_t i = 0; i < c->n_chunks; i++)
		add_le(b, c->crcs[i], 4);
}

/* None, or one for each chunk: who walks over the content counts by its size. */
static bool has_all_crcs(const struct copy_rec *c)
{
	return !c->n_chunks ||
	       (c->chunk_len &&
		c->n_chunks ==
			c->size / c->chunk_len + (c->size % c->chunk_len != 0));
}

int copy_decode(const void *rec, size_t len, uint64_t version,
		enum copy_tier tier, struct copy_rec *out)
{
	struct reader r = reader_of(rec, len);
	struct copy_rec c = { .version = version, .tier = tier };
	const uint8_t *object, *crcs;
	size_t object_len;

	if (read_le(&r, 1) > RECORD_VERSION)
		return -EOPNOTSUPP;
	c.kind = (enum copy_kind)read_le(&r, 1);
	c.verified = read_le(&r, 1);
	object_len = read_le(&r, 1);
	c.file = read_le(&r, 8);
	c.size = read_le(&r, 8);
	c.chunk_len = (uint32_t)read_le(&r, 4);
	c.n_chunks = (uint32_t)read_le(&r, 4);
	if (object_len >= sizeof(c.object))
		return -EUCLEAN;
	object = read_bytes(&r, object_len);
	crcs = read_bytes(&r, (size_t)c.n_chunks * 4);
	if (r.bad || r.p != r.end || !has_all_crcs(&c))
		return -EUCLEAN;
	memcpy(c.object, object, object_len);
	if (c.n_chunks) {
		c.crcs = malloc((size_t)c.n_chunks * 4);
		if (!c.crcs)
			return -ENOMEM;
	}
	for (uint32_t i = 0; i < c.n_chunks; i++)
		c.crcs[i] = (uint32_t)get_le(crcs + 4 * (size_t)i, 4);
	*out = c;
	return 0;
}

void copy_rec_fini(struct copy_rec *c)
{
	free(c->crcs);
	c->crcs = NULL;
	c->n_chunks = 0;
}

int plain_decode(const void *rec, size_t len, struct slice *out)
{
	const uint8_t *b = rec;

	if (len < 1)
		return -EUCLEAN;
	if (b[0] > RECORD_VERSION)
		return -EOPNOTSUPP;
	*out = (struct slice){ b + 1, len - 1 };
	return 0;
}
