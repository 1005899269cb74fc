/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a version in ranges. A source has a *place*: a descriptor of the
 * backing file, a small content in memory, or an object of the remote. Reads
 * share it; whoever finds after its pread that the backing file has begun to
 * hold something else (backing_turns) throws the bytes away and looks for the
 * version anew.
 *
 * That order is enough: a file becomes writable by backing_set_version(0)
 * before its OPEN is answered, so bytes of later writes are never read without
 * the turn being seen.
 */
#include "engine/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/chunk_cache.h"
#include "engine/core.h"
#include "engine/fd_io.h"
#include "engine/version.h"

#define N_PLACES 4 /* that a read tries */

struct place {
	unsigned refs; /* guarded by the source's lock */
	/* immutable */
	struct backing *backing;
	uint64_t turns;
	int fd;
	void *small;
	struct fetch *ranges;
};

struct source {
	struct engine *e;
	uint64_t ino, version, size;
	bool remote; /* it may be asked */
	struct mutex lock;
	struct place *place; /* guarded by lock */
};

/* ---- finding ---------------------------------------------------------- */

static void place_free(struct engine *e, struct place *p)
{
	if (!p)
		return;
	close_p(&p->fd);
	backing_put(e, p->backing);
	free(p->small);
	if (p->ranges)
		fetch_put(p->ranges);
	free(p);
}

/* Takes the reference on b. */
static int use_backing(struct source *s, struct place *p, struct backing *b)
{
	struct tier *t = backing_tier(s->e, b->where);

	p->backing = b;
	p->turns = backing_turns(s->e, b);
	return t->ops->open(t, b->id, O_RDONLY, &p->fd);
}

static int use_small(struct source *s, struct place *p,
		     const struct copy_rec *c)
{
	size_t len;
	int r = meta_small(s->e->meta, s->version, &p->small, &len);

	if (r < 0)
		return r;
	if (len != s->size)
		return -EUCLEAN;
	if (c->n_chunks && crc32c(0, p->small, len) != c->crcs[0])
		return -EBADMSG;
	return 0;
}

static int use_nvme(struct source *s, struct place *p, const struct copy_rec *c)
{
	struct backing *b;

	if (c->kind == COPY_SMALL)
		return use_small(s, p, c);
	b = backing_adopt(s->e, c->file, BACKING_NVME, s->version, 0);
	if (!b)
		return -ENOMEM;
	backing_recorded(s->e, s->version, c->file);
	return use_backing(s, p, b);
}

/* -EAGAIN: remote-only. in's lock keeps its file from being written, and its
 * NVMe copy from being evicted, between the look and the open. */
static int find_local_locked(struct source *s, const struct inode *in,
			     struct place *p) MUST_HOLD(in->lock);
static int find_local_locked(struct source *s, const struct inode *in,
			     struct place *p)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	struct backing *b = backing_of_version(s->e, s->version);
	size_t len;
	int r;

	if (b && !(in->written && b == in->backing))
		return use_backing(s, p, b);
	backing_put(s->e, b); /* a snapshot whose writer goes on */
	if (!version_small(s->e, s->version, &p->small, &len))
		return len == s->size ? 0 : -EUCLEAN;
	if (!version_flushed(s->e, s->version, &copy))
		return use_nvme(s, p, &copy);
	r = meta_copy(s->e->meta, s->version, COPY_NVME, &copy);
	if (!r)
		return use_nvme(s, p, &copy);
	if (b && r == -ENOENT)
		return -EBUSY;
	return r == -ENOENT ? -EAGAIN : r;
}

static int find_remote(struct source *s, struct place *p)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	char path[META_PATH_MAX];
	int r = meta_copy(s->e->meta, s->version, COPY_REMOTE, &copy);

	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	if (!s->e->fetcher)
		return -EIO;
	if (view_path(meta_accepted(s->e->meta), s->ino, path))
		path[0] = 0;
	if (copy.size != s->size)
		return -EUCLEAN;
	return ranges_open(s->e->fetcher, path, &copy, &p->ranges);
}

static int find_local(struct source *s, struct place *p)
{
	struct inode *in;
	bool fresh;
	int r = inode_get(s->e, s->ino, &fresh, &in);

	if (r < 0)
		return r;
	mutex_lock(&in->lock);
	r = find_local_locked(s, in, p);
	mutex_unlock(&in->lock);
	inode_put(s->e, in);
	return r;
}

static int find_place(struct source *s, struct place **out)
{
	struct place *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->fd = -1;
	p->refs = 1;
	r = find_local(s, p);
	if (r == -EAGAIN && s->remote)
		r = find_remote(s, p);
	if (r == -EBUSY)
		r = -EAGAIN;
	if (r < 0) {
		place_free(s->e, p);
		return r;
	}
	*out = p;
	return 0;
}

int source_open(struct engine *e, uint64_t ino, uint64_t version, bool remote,
		struct source **out)
{
	struct version_rec rec;
	struct source *s;
	int r = view_version(meta_accepted(e->meta), version, &rec);

	if (r < 0 || rec.ino != ino)
		return r == -ENOENT || !r ? -ESTALE : r;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->e = e;
	s->ino = ino;
	s->version = version;
	s->size = rec.size;
	s->remote = remote;
	mutex_init(&s->lock);
	r = find_place(s, &s->place);
	if (r < 0) {
		source_close(s);
		return r;
	}
	*out = s;
	return 0;
}

void source_close(struct source *s)
{
	if (!s)
		return;
	place_free(s->e, s->place);
	mutex_fini(&s->lock);
	free(s);
}

/* ---- reading ---------------------------------------------------------- */

static struct place *place_get(struct source *s)
{
	struct place *p;

	mutex_lock(&s->lock);
	p = s->place;
	p->refs++;
	mutex_unlock(&s->lock);
	return p;
}

static void place_put(struct source *s, struct place *p)
{
	bool last;

	mutex_lock(&s->lock);
	last = --p->refs == 0;
	mutex_unlock(&s->lock);
	if (last)
		place_free(s->e, p);
}

bool source_is_remote(struct source *s)
{
	bool yes;

	mutex_lock(&s->lock);
	yes = s->place->ranges != NULL;
	mutex_unlock(&s->lock);
	return yes;
}

/* What p holds is another version's now. */
static int look_elsewhere(struct source *s, struct place *p)
{
	struct place *found;
	bool used;
	int r = find_place(s, &found);

	if (r < 0)
		return r;
	mutex_lock(&s->lock);
	used = s->place == p;
	if (used) {
		s->place = found;
		p->refs--; /* the source's own; the caller has one more */
	}
	mutex_unlock(&s->lock);
	if (!used) /* somebody was faster */
		place_free(s->e, found);
	return 0;
}

static int load_chunk(void *arg, uint64_t index, void *buf, size_t *len)
{
	return ranges_read_chunk(arg, index, buf, len);
}

static int read_ranges(struct source *s, struct fetch *ranges, uint8_t *buf,
		       size_t len, uint64_t off)
{
	int r = 0;

	while (len && !r) {
		size_t in = off % CHUNK_LEN;
		size_t n = len < CHUNK_LEN - in ? len : CHUNK_LEN - in;

		r = chunk_cache_read(s->e->chunks, s->version, off / CHUNK_LEN,
				     buf, n, in, load_chunk, ranges);
		buf += n;
		len -= n;
		off += n;
	}
	return r;
}

/* -EAGAIN: the backing file holds something else. */
static int read_place(struct source *s, struct place *p, void *buf, size_t len,
		      uint64_t off)
{
	int r = 0;

	if (p->ranges)
		return read_ranges(s, p->ranges, buf, len, off);
	if (p->small) {
		memcpy(buf, (uint8_t *)p->small + off, len);
		return 0;
	}
	r = pread_all(p->fd, buf, len, off);
	return backing_turns(s->e, p->backing) == p->turns ? r : -EAGAIN;
}

int source_read(struct source *s, void *buf, size_t len, uint64_t off)
{
	int r = -EAGAIN;

	if (off > s->size || len > s->size - off)
		return -ERANGE;
	for (int i = 0; i < N_PLACES && r == -EAGAIN; i++) {
		struct place *p = place_get(s);

		r = read_place(s, p, buf, len, off);
		if (r == -EAGAIN) {
			r = look_elsewhere(s, p);
			r = r ? r : -EAGAIN;
		}
		place_put(s, p);
	}
	return r;
}

/* 1: not so. */
static int peek(struct source *s, void *buf, size_t len, uint64_t off)
{
	struct place *p;
	int r = 1;

	if (off > s->size || len > s->size - off)
		return -ERANGE;
	p = place_get(s);
	if (p->ranges && !ranges_peek(p->ranges, buf, len, off))
		r = 0;
	place_put(s, p);
	return r;
}

static int scan_read(void *arg, void *buf, size_t len, uint64_t off)
{
	return source_read(arg, buf, len, off);
}

static int scan_peek(void *arg, void *buf, size_t len, uint64_t off)
{
	int r = peek(arg, buf, len, off);

	return r == 1 ? source_read(arg, buf, len, off) : r;
}

void source_scanner(struct source *s, struct reader_source *out)
{
	*out = (struct reader_source){
		.size = s->size, .read = scan_read, .peek = scan_peek, .arg = s
	};
}
