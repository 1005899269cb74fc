/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events, encoded once when they happen and decoded when the publisher
 * replays them. Strings keep their NUL on disk, so that a decoded event
 * borrows them from the record; the decoder checks that each has it.
 */
#include <errno.h>

#include "metadata/internal.h"
#include "metadata/record.h"

#define HAS_PATH2 1u
#define HAS_NAME 2u

static void add_text(struct bytes *b, const char *s)
{
	size_t len = strlen(s) + 1;

	add_le(b, len, 4);
	bytes_append(b, s, len);
}

int event_encode(struct bytes *b, const struct event *ev)
{
	unsigned int has = (ev->path2 ? HAS_PATH2 : 0) |
			   (ev->name ? HAS_NAME : 0);
	uint8_t *p;

	if (ev->n_paths > UINT32_MAX || ev->value_len > UINT32_MAX)
		return -EINVAL;
	add_u8(b, RECORD_VERSION);
	add_u8(b, (uint8_t)ev->kind);
	add_u8(b, (uint8_t)has);
	add_le(b, (uint64_t)ev->stamp_ns, 8);
	add_le(b, ev->version, 8);
	add_le(b, ev->rec.ino, 8);
	p = bytes_add(b, INODE_LEN);
	if (p)
		inode_encode(p, &ev->rec);
	add_le(b, ev->n_paths, 4);
	for (size_t i = 0; i < ev->n_paths; i++)
		add_text(b, ev->paths[i]);
	if (ev->path2)
		add_text(b, ev->path2);
	if (ev->name)
		add_text(b, ev->name);
	add_le(b, ev->value_len, 4);
	bytes_append(b, ev->value, ev->value_len);
	return b->failed ? -ENOMEM : 0;
}

static const char *read_text(struct reader *r)
{
	size_t len = read_le(r, 4);
	const uint8_t *p = read_bytes(r, len);

	if (!p || !len || memchr(p, 0, len) != p + len - 1) {
		r->bad = true;
		return "";
	}
	return (const char *)p;
}

static int read_paths(struct reader *r, struct event *ev, const char ***paths)
{
	size_t n = read_le(r, 4);

	/* Each takes 5 bytes at least: a wrong count asks for no memory. */
	if (r->bad || n > (size_t)(r->end - r->p) / 5)
		return -EUCLEAN;
	*paths = calloc(n + 1, sizeof(**paths));
	if (!*paths)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		(*paths)[i] = read_text(r);
	ev->paths = *paths;
	ev->n_paths = n;
	return 0;
}

int event_decode(struct slice val, uint64_t seq, struct event *out,
		 const char ***out_paths)
{
	CLEANUP(free_p) const char **paths = NULL;
	struct reader r = reader_of(val.p, val.len);
	struct event ev = { .seq = seq };
	const uint8_t *rec;
	uint64_t has, ino;
	int err;

	if (read_le(&r, 1) > RECORD_VERSION)
		return -EOPNOTSUPP;
	ev.kind = (enum event_kind)read_le(&r, 1);
	has = read_le(&r, 1);
	ev.stamp_ns = (int64_t)read_le(&r, 8);
	ev.version = read_le(&r, 8);
	ino = read_le(&r, 8);
	rec = read_bytes(&r, INODE_LEN);
	if (!rec)
		return -EUCLEAN;
	err = inode_decode(rec, INODE_LEN, ino, &ev.rec);
	if (!err)
		err = read_paths(&r, &ev, &paths);
	if (err)
		return err;
	if (has & HAS_PATH2)
		ev.path2 = read_text(&r);
	if (has & HAS_NAME)
		ev.name = read_text(&r);
	ev.value_len = read_le(&r, 4);
	ev.value = read_bytes(&r, ev.value_len);
	if (r.bad || r.p != r.end)
		return -EUCLEAN;
	if (!ev.value_len)
		ev.value = NULL;
	*out = ev;
	*out_paths = MOVE(paths);
	return 0;
}

/* ---- the xattrs of a seal --------------------------------------------- */

static int add_xattr(void *arg, const char *name, const void *value, size_t len)
{
	add_text(arg, name);
	add_le(arg, len, 4);
	bytes_append(arg, value, len);
	return 0;
}

int event_xattrs_encode(const struct view *v, uint64_t ino, void **value,
			size_t *len)
{
	struct bytes b = { 0 };
	int err;

	add_u8(&b, RECORD_VERSION);
	err = view_xattrs(v, ino, add_xattr, &b);
	if (!err && b.failed)
		err = -ENOMEM;
	if (err) {
		bytes_fini(&b);
		return err;
	}
	*value = b.p;
	*len = b.len;
	return 0;
}

int event_xattrs(const struct event *ev, xattr_fn *fn, void *arg)
{
	struct reader r = reader_of(ev->value, ev->value_len);
	int err = 0;

	if (!ev->value_len)
		return -ENODATA;
	if (read_le(&r, 1) > RECORD_VERSION)
		return -EOPNOTSUPP;
	while (!err && !r.bad && r.p != r.end) {
		const char *name = read_text(&r);
		size_t len = read_le(&r, 4);
		const uint8_t *value = read_bytes(&r, len);

		if (!r.bad)
			err = fn(arg, name, value, len);
	}
	return r.bad ? -EUCLEAN : err;
}
