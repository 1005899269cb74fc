/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of versions: where they can be read, and how a sealed content gets
 * a copy of its own before its backing file is written again.
 */
#include "engine/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/fd_io.h"
#include "metadata/log_message.h"

#define WAIT_LOOK_NS INT64_C(100000000)

int content_load(int fd, void *buf, size_t len)
{
	ssize_t n;

	memset(buf, 0, len);
	n = pread_most(fd, buf, len, 0);
	return n < 0 ? (int)n : 0;
}

static int read_backing(struct engine *e, struct backing *b, size_t len,
			void **out)
{
	struct tier *t = backing_tier(e, b->where);
	CLEANUP(close_p) int fd = -1;
	CLEANUP(free_p) void *buf = malloc(len ? len : 1);
	int r;

	if (!buf)
		return -ENOMEM;
	r = t->ops->open(t, b->id, O_RDONLY, &fd);
	if (r < 0)
		return r;
	r = content_load(fd, buf, len);
	if (r < 0)
		return r;
	*out = MOVE(buf);
	return 0;
}

/* From the capture, if there is one; else *b is the file to be read. */
static int load_captured(struct engine *e, struct version *v, void **buf,
			 struct backing **b)
{
	struct versions *vs = &e->versions;
	int r = 0;

	mutex_lock(&vs->lock);
	if (v->small) {
		*buf = malloc(v->size ? v->size : 1);
		if (*buf)
			memcpy(*buf, v->small, v->size);
		else
			r = -ENOMEM;
	} else if (b) {
		*b = v->backing;
		backing_get(e, *b);
	}
	mutex_unlock(&vs->lock);
	return r;
}

int version_load_small(struct engine *e, struct version *v, void **out)
{
	CLEANUP(free_p) void *read = NULL;
	struct backing *b = NULL;
	void *buf = NULL;
	int r;

	r = load_captured(e, v, &buf, &b);
	if (r == 0 && b) {
		r = read_backing(e, b, v->size, &read);
		backing_put(e, b);
		/* Captured since: the file may have changed as we read it. */
		if (r == 0)
			r = load_captured(e, v, &buf, NULL);
		if (r == 0 && !buf)
			buf = MOVE(read);
	}
	if (r < 0)
		return r;
	*out = buf;
	return 0;
}

int version_small(struct engine *e, uint64_t id, void **out, size_t *len)
{
	struct versions *vs = &e->versions;
	struct version *v;
	int r;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v && v->small)
		version_hold_locked(v);
	else
		v = NULL;
	mutex_unlock(&vs->lock);
	if (!v)
		return -ENOENT;
	r = version_load_small(e, v, out);
	*len = v->size;
	version_unhold(e, v);
	return r;
}

int version_flushed(struct engine *e, uint64_t id, struct copy_rec *out)
{
	struct versions *vs = &e->versions;
	struct version *v;
	int r = -ENOENT;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v && v->state == VERSION_FLUSHED && v->size > META_SMALL_MAX) {
		*out = (struct copy_rec){ .version = id,
					  .kind = COPY_FILE,
					  .file = v->file,
					  .size = v->size };
		r = 0;
	}
	mutex_unlock(&vs->lock);
	return r;
}

static int small_crcs(struct engine *e, struct version *v, uint32_t **out)
{
	CLEANUP(free_p) void *data = NULL;
	uint32_t *crcs = malloc(sizeof(*crcs));
	int r;

	if (!crcs)
		return -ENOMEM;
	r = version_load_small(e, v, &data);
	if (r < 0) {
		free(crcs);
		return r;
	}
	crcs[0] = crc32c(0, data, v->size);
	*out = crcs;
	return 0;
}

/* v is held. -ENOENT: not known yet. */
static int unrecorded_crcs(struct engine *e, struct version *v, uint32_t **out)
{
	size_t len = N_CHUNKS(v->size) * sizeof(uint32_t);
	uint32_t *crcs = NULL;

	if (v->size <= META_SMALL_MAX)
		return small_crcs(e, v, out);
	mutex_lock(&e->versions.lock);
	if (v->crcs && v->state == VERSION_FLUSHED) {
		crcs = malloc(len);
		if (crcs)
			memcpy(crcs, v->crcs, len);
	}
	mutex_unlock(&e->versions.lock);
	*out = crcs;
	return crcs ? 0 : -ENOENT;
}

int version_crcs(struct engine *e, uint64_t id, uint64_t size, uint32_t **out)
{
	struct versions *vs = &e->versions;
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	struct version *v;
	int r;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v)
		version_hold_locked(v);
	mutex_unlock(&vs->lock);
	if (v) {
		r = v->size == size ? unrecorded_crcs(e, v, out) : -ENOENT;
		version_unhold(e, v);
		return r;
	}
	r = meta_copy(e->meta, id, COPY_NVME, &copy);
	if (r < 0)
		return r;
	if (copy.size != size || !copy.crcs || copy.chunk_len != CHUNK_LEN)
		return -ENOENT;
	*out = MOVE(copy.crcs);
	return 0;
}

/* A copy of the version's own in a fresh DRAM (or NVMe) backing file. */
static int copy_to_own(struct engine *e, struct backing *b, uint64_t size,
		       uint64_t version, struct backing **out)
{
	struct tier *t = backing_tier(e, b->where);
	CLEANUP(close_p) int src = -1;
	CLEANUP(close_p) int dst = -1;
	struct backing *own;
	struct stat st;
	int r;

	r = t->ops->open(t, b->id, O_RDONLY, &src);
	if (r < 0)
		return r;
	r = choose_backing(e, size, O_RDWR, &own, &dst);
	if (r < 0)
		return r;
	/* A snapshot's writer may have cut it meanwhile: the rest is zeros, as
	 * the flush reads it. */
	if (fstat(src, &st) || ftruncate(dst, (off_t)size))
		r = -errno;
	else
		r = copy_content(src, dst,
				 (uint64_t)st.st_size < size
					 ? (uint64_t)st.st_size
					 : size,
				 NULL);
	if (r < 0) {
		backing_put(e, own);
		return r;
	}
	backing_set_version(e, b, 0);
	backing_set_version(e, own, version);
	*out = own;
	return 0;
}

/* An unrecorded version gets its own copy; held by the caller. */
static int preserve_unrecorded(struct engine *e, struct version *v,
			       struct backing *b)
{
	struct versions *vs = &e->versions;
	struct backing *own = NULL, *old;
	enum version_state state;
	void *small = NULL;
	int r = 0;

	/* A flusher that reads b must be waited for, and none may begin. */
	mutex_lock(&vs->lock);
	state = v->state;
	if (state == VERSION_RUNNING ||
	    (state == VERSION_QUEUED && v->size >= COPY_BELOW))
		r = -EAGAIN;
	else if (state != VERSION_FLUSHED)
		v->state = VERSION_RUNNING;
	mutex_unlock(&vs->lock);
	if (r < 0)
		return r;
	if (v->size <= META_SMALL_MAX)
		r = read_backing(e, b, v->size, &small);
	else if (state != VERSION_FLUSHED)
		r = copy_to_own(e, b, v->size, v->id, &own);
	mutex_lock(&vs->lock);
	v->state = state;
	pthread_cond_signal(&vs->work);
	old = r < 0 ? NULL : v->backing;
	if (r == 0)
		v->backing = own;
	if (small && !v->small)
		v->small = MOVE(small);
	mutex_unlock(&vs->lock);
	if (r < 0)
		return r;
	free(small);
	backing_put(e, old);
	return 0;
}

/* b is the NVMe copy of a recorded version: make another one. */
static int preserve_nvme_copy(struct engine *e, uint64_t id, struct backing *b)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	CLEANUP(close_p) int src = -1;
	CLEANUP(close_p) int dst = -1;
	uint64_t file = meta_new_version(e->meta);
	struct tier *t = e->nvme;
	int r;

	r = meta_copy(e->meta, id, COPY_NVME, &copy);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (copy.kind != COPY_FILE || copy.file != b->id)
		return 0;
	r = t->ops->open(t, b->id, O_RDONLY, &src);
	if (r < 0)
		return r;
	r = t->ops->create(t, file, O_RDWR, &dst);
	if (r < 0)
		return r;
	r = copy_content(src, dst, copy.size,
			 copy.chunk_len == CHUNK_LEN ? copy.crcs : NULL);
	if (!r)
		r = t->ops->sync(t, dst);
	if (!r)
		r = t->ops->sync_names(t);
	copy.file = file;
	if (!r)
		r = meta_put_copy(e->meta, &copy, true);
	if (r < 0) {
		(void)!t->ops->remove(t, file);
		return r;
	}
	backing_set_version(e, b, 0); /* b is the caller's alone now */
	return 0;
}

/* Is b its file on NVMe: what the flush made, or where it was spilled to? */
static bool is_on_nvme(struct engine *e, struct version *v, struct backing *b)
{
	bool yes;

	mutex_lock(&e->versions.lock);
	yes = b->where == BACKING_NVME && v->size > META_SMALL_MAX &&
	      (v->backing == b ||
	       (v->state == VERSION_FLUSHED && v->file == b->id));
	mutex_unlock(&e->versions.lock);
	return yes;
}

int version_preserve(struct engine *e, uint64_t id, struct backing *b)
{
	struct versions *vs = &e->versions;
	struct version *v;
	int r;

	if (!id)
		return 0;
	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v)
		version_hold_locked(v);
	mutex_unlock(&vs->lock);
	if (!v)
		return b->where == BACKING_NVME ? preserve_nvme_copy(e, id, b)
						: 0;
	if (is_on_nvme(e, v, b))
		r = -EAGAIN; /* until it is recorded; then copied */
	else if (v->backing != b)
		r = 0; /* it has its own already */
	else
		r = preserve_unrecorded(e, v, b);
	version_unhold(e, v);
	return r;
}

void version_take_back(struct engine *e, uint64_t id, struct backing *b)
{
	struct versions *vs = &e->versions;
	struct backing *own = NULL;
	struct version_rec rec;
	struct version *v;

	if (b->version == id || view_version(meta_accepted(e->meta), id, &rec))
		return;
	if (rec.backing != b->id || rec.where != (uint32_t)b->where)
		return;
	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v) {
		backing_get(e, b);
		own = v->backing;
		v->backing = b;
	}
	mutex_unlock(&vs->lock);
	if (!v && b->where == BACKING_NVME)
		return; /* its record leads to the copy */
	if (own)
		backing_set_version(e, own, 0);
	backing_set_version(e, b, id);
	if (!v)
		backing_recorded(e, id, 0); /* in DRAM once more */
	backing_put(e, own);
}

/* -EAGAIN: not yet; record: it is flushed, and must be recorded. */
static int ask_flushed_locked(struct versions *vs, uint64_t id, bool *record)
	MUST_HOLD(vs->lock);
static int ask_flushed_locked(struct versions *vs, uint64_t id, bool *record)
{
	struct version *v = version_find_locked(vs, id);
	bool spilled;

	if (!v)
		return 0;
	/* Nothing but what is on NVMe. */
	spilled = v->backing ? v->backing->where == BACKING_NVME
			     : v->size > META_SMALL_MAX;
	*record = spilled && v->state == VERSION_FLUSHED;
	if (v->state == VERSION_FLUSHED && !spilled)
		return 0;
	if (vs->stop)
		return v->error ? v->error : -EIO;
	/* An NVMe that fails is no reason to fail what DRAM has room for:
	 * version_preserve() copies it now. */
	if (v->state == VERSION_FAILED)
		return spilled ? v->error : 0;
	return -EAGAIN;
}

/*
 * Waits until id is flushed; a spilled one, whose file is its own copy, until
 * it is recorded.
 */
int version_wait_flushed(struct engine *e, uint64_t id)
{
	struct versions *vs = &e->versions;
	bool record = false;
	int r = -EAGAIN;

	follow_kick(e, true);
	while (r == -EAGAIN) {
		mutex_lock(&vs->lock);
		r = ask_flushed_locked(vs, id, &record);
		if (r == -EAGAIN)
			cond_wait_ns(&vs->changed, &vs->lock, WAIT_LOOK_NS);
		mutex_unlock(&vs->lock);
		if (r == -EAGAIN && record && follow_error(e))
			r = follow_error(e);
	}
	return r;
}

static int small_memfd(const void *data, size_t len, int *out)
{
	CLEANUP(close_p) int fd = memfd_create("ckptfs-small", MFD_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = pwrite_all(fd, data, len, 0);
	if (r < 0)
		return r;
	*out = fd;
	fd = -1;
	return 0;
}

static int open_copy(struct engine *e, const struct copy_rec *c, int *fd)
{
	CLEANUP(free_p) void *data = NULL;
	size_t len;
	int r;

	if (c->kind == COPY_FILE)
		return e->nvme->ops->open(e->nvme, c->file, O_RDONLY, fd);
	r = meta_small(e->meta, c->version, &data, &len);
	if (r < 0)
		return r;
	if (len != c->size)
		return -EUCLEAN;
	return small_memfd(data, len, fd);
}

int version_open_bytes(struct engine *e, uint64_t version, bool slow, int *fd,
		       struct copy_rec *copy)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	struct version_rec rec;
	struct backing *b;
	int r;

	r = meta_copy(e->meta, version, COPY_NVME, &c);
	if (r < 0)
		return r;
	r = view_version(meta_accepted(e->meta), version, &rec);
	b = backing_of_version(e, version);
	if (!slow && !r && b && b->where == BACKING_DRAM && b->recorded &&
	    !(rec.flags & VERSION_SNAPSHOT))
		r = e->dram->ops->open(e->dram, b->id, O_RDONLY, fd);
	else
		r = open_copy(e, &c, fd);
	backing_put(e, b);
	if (r < 0)
		return r;
	if (copy) {
		*copy = c;
		memset(&c, 0, sizeof(c));
	}
	return 0;
}
