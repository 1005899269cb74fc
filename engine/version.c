/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unrecorded versions: the queue between the seal and the durable database.
 * States and invariants: version.h. The flusher threads live here; how bytes
 * move is flush.c's.
 *
 * Small versions need no file: they count as FLUSHED at once, and the
 * follower reads their content when it writes the batch that records them.
 */
#include "engine/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "metadata/log_message.h"

#define BACKOFF_MIN_NS INT64_C(100000000)
#define BACKOFF_MAX_NS INT64_C(5000000000)
#define N_STABLE_TRIES 3
#define WAIT_LOOK_NS INT64_C(100000000)
/* What one target may be. */
#define LOG_MAX (16u << 20)
#define SMALLS_MAX (16u << 20)
#define N_MAX 8192

void versions_init(struct versions *vs)
{
	mutex_init(&vs->lock);
	cond_init_mono(&vs->work);
	cond_init_mono(&vs->changed);
	TAILQ_INIT(&vs->queue);
	STAILQ_INIT(&vs->bounds);
	for (unsigned i = 0; i < N_BUCKETS; i++)
		LIST_INIT(&vs->by_id[i]);
}

struct version *version_new(uint64_t id, uint64_t ino, uint64_t size)
{
	struct version *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->id = id;
	v->ino = ino;
	v->size = size;
	v->sealed_ns = now_mono_ns();
	v->state = size <= META_SMALL_MAX ? VERSION_FLUSHED : VERSION_QUEUED;
	return v;
}

/* Out of the table; what it held goes with it. */
static void version_free(struct engine *e, struct version *v)
{
	if (!v->recorded && v->size > META_SMALL_MAX) {
		if (!v->gave_file)
			(void)!e->nvme->ops->remove(e->nvme, v->id);
		if (v->took_file)
			(void)!e->nvme->ops->remove(e->nvme, v->file);
	}
	if (v->base)
		version_unhold(e, v->base);
	backing_put(e, v->backing);
	free(v->small);
	free(v->crcs);
	free(v);
}

/* With those that only their successors hold. */
static void fini_chain(struct version *v)
{
	while (v) {
		struct version *base = v->base && v->base->gone ? v->base
								: NULL;

		free(v->small);
		free(v->crcs);
		free(v);
		v = base;
	}
}

void versions_fini(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;
	struct bound *b;

	while ((b = STAILQ_FIRST(&vs->bounds))) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	while ((v = TAILQ_FIRST(&vs->queue))) {
		TAILQ_REMOVE(&vs->queue, v, in_order);
		LIST_REMOVE(v, by_id);
		fini_chain(v);
	}
	mutex_fini(&vs->lock);
}

static struct version *find_locked(struct versions *vs, uint64_t id)
{
	struct version *v;

	LIST_FOREACH(v, &vs->by_id[bucket_of(id)], by_id)
	if (v->id == id)
		return v;
	return NULL;
}

void version_insert(struct engine *e, struct version *v)
{
	struct versions *vs = &e->versions;
	struct version *after;

	mutex_lock(&vs->lock);
	after = TAILQ_LAST(&vs->queue, version_queue);
	while (after && after->seq > v->seq)
		after = TAILQ_PREV(after, version_queue, in_order);
	if (after)
		TAILQ_INSERT_AFTER(&vs->queue, after, v, in_order);
	else
		TAILQ_INSERT_HEAD(&vs->queue, v, in_order);
	LIST_INSERT_HEAD(&vs->by_id[bucket_of(v->id)], v, by_id);
	vs->n++;
	vs->bytes += v->size;
	e->sealed_bytes += v->size;
	vs->n_since++;
	if (v->size <= META_SMALL_MAX)
		vs->smalls_len += v->size;
	if (v->state == VERSION_QUEUED)
		pthread_cond_signal(&vs->work);
	mutex_unlock(&vs->lock);
}

/* ---- targets ---------------------------------------------------------- */

void version_bound(struct engine *e, size_t len)
{
	struct versions *vs = &e->versions;
	struct bound *b;

	mutex_lock(&vs->lock);
	vs->log_len += len;
	if (vs->log_len > LOG_MAX || vs->smalls_len > SMALLS_MAX ||
	    vs->n_since > N_MAX) {
		b = malloc(sizeof(*b)); /* none: the target grows */
		if (b) {
			b->seq = meta_accepted_seq(e->meta);
			STAILQ_INSERT_TAIL(&vs->bounds, b, next);
			vs->log_len = vs->smalls_len = vs->n_since = 0;
		}
	}
	mutex_unlock(&vs->lock);
}

/*
 * The newest number is read under the lock that version_dead() takes: who
 * dies after it is pinned, who died before is not needed. An older number
 * would do only if it had been chosen when it was the newest.
 */
uint64_t version_next_target(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct bound *b;
	uint64_t target;

	mutex_lock(&vs->lock);
	while ((b = STAILQ_FIRST(&vs->bounds)) &&
	       b->seq <= meta_nvme_seq(e->meta)) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	if (b) {
		target = b->seq;
	} else {
		target = meta_accepted_seq(e->meta);
		vs->log_len = vs->smalls_len = vs->n_since = 0;
	}
	vs->target = target;
	mutex_unlock(&vs->lock);
	return target;
}

void version_retry_failed(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;

	mutex_lock(&vs->lock);
	TAILQ_FOREACH(v, &vs->queue, in_order)
	if (v->state == VERSION_FAILED)
		v->retry_ns = 0;
	pthread_cond_broadcast(&vs->work);
	mutex_unlock(&vs->lock);
}

static bool is_between(uint64_t seq, uint64_t target, uint64_t dead)
{
	return seq <= target && dead > target;
}

static bool is_pinned_locked(struct versions *vs, uint64_t seq, uint64_t dead)
{
	struct bound *b;

	if (is_between(seq, vs->target, dead))
		return true;
	STAILQ_FOREACH(b, &vs->bounds, next)
	if (is_between(seq, b->seq, dead))
		return true;
	return false;
}

/* ---- in and out ------------------------------------------------------- */

static void unlink_locked(struct versions *vs, struct version *v)
{
	TAILQ_REMOVE(&vs->queue, v, in_order);
	LIST_REMOVE(v, by_id);
	vs->n--;
	vs->bytes -= v->size;
	v->gone = true;
	pthread_cond_broadcast(&vs->changed);
}

void version_discard(struct engine *e, uint64_t id)
{
	struct versions *vs = &e->versions;
	struct version *v;

	mutex_lock(&vs->lock);
	v = find_locked(vs, id);
	if (v) {
		unlink_locked(vs, v);
		if (v->held)
			v = NULL; /* freed by version_unhold() */
	}
	mutex_unlock(&vs->lock);
	if (v)
		version_free(e, v);
}

void version_hold_locked(struct version *v)
{
	v->held++;
}

void version_unhold(struct engine *e, struct version *v)
{
	bool last;

	mutex_lock(&e->versions.lock);
	last = --v->held == 0 && v->gone;
	mutex_unlock(&e->versions.lock);
	if (last)
		version_free(e, v);
}

void version_begin_from(struct engine *e, struct version *v, uint64_t base)
{
	struct versions *vs = &e->versions;
	struct version *b;

	mutex_lock(&vs->lock);
	b = find_locked(vs, base);
	if (b && !b->final && b->size > META_SMALL_MAX) {
		version_hold_locked(b);
		v->base = b;
	}
	mutex_unlock(&vs->lock);
}

void version_dead(struct engine *e, uint64_t id, uint64_t seq)
{
	struct versions *vs = &e->versions;
	struct version *v, *drop = NULL;
	bool recorded = false, pinned = false;

	mutex_lock(&vs->lock);
	v = find_locked(vs, id);
	if (!v) {
		recorded = true;
	} else {
		v->dead_seq = seq;
		pinned = is_pinned_locked(vs, v->seq, seq);
		if (!pinned) {
			unlink_locked(vs, v);
			drop = v->held ? NULL : v;
		}
	}
	mutex_unlock(&vs->lock);
	if (drop)
		version_free(e, drop);
	if (recorded)
		follow_dead(e, id, seq);
	if (!pinned)
		backing_version_gone(e, id);
}

void version_recorded(struct engine *e, struct version *v)
{
	uint64_t id = v->id, dead_seq;

	backing_recorded(e, id, v->file);
	mutex_lock(&e->versions.lock);
	if (!v->gone)
		unlink_locked(&e->versions, v);
	v->recorded = true;
	dead_seq = v->dead_seq;
	e->versions.n_recording++;
	mutex_unlock(&e->versions.lock);
	version_unhold(e, v);
	mutex_lock(&e->versions.lock);
	e->versions.n_recording--;
	e->versions.n_recorded++;
	pthread_cond_broadcast(&e->versions.changed);
	mutex_unlock(&e->versions.lock);
	/* One that died while the batch was written has a record too. */
	if (dead_seq) {
		follow_dead(e, id, dead_seq);
		backing_version_gone(e, id);
	}
}

bool version_wait_recorded(struct engine *e)
{
	struct versions *vs = &e->versions;
	uint64_t before;
	bool more = true;

	follow_kick(e, true);
	mutex_lock(&vs->lock);
	before = vs->n_recorded;
	while (more && vs->n_recorded == before) {
		more = (vs->n || vs->n_recording) && !vs->stop;
		if (more)
			cond_wait_ns(&vs->changed, &vs->lock, WAIT_LOOK_NS);
		mutex_unlock(&vs->lock);
		if (follow_error(e))
			more = false;
		mutex_lock(&vs->lock);
	}
	mutex_unlock(&vs->lock);
	return more;
}

void version_confirm(struct engine *e, uint64_t id)
{
	struct version *v;

	mutex_lock(&e->versions.lock);
	v = find_locked(&e->versions, id);
	if (v && v->state == VERSION_QUEUED)
		v->final = true;
	mutex_unlock(&e->versions.lock);
}

/* One that only a target that was given up needed. NULL: there is none. */
static struct version *next_unpinned_locked(struct versions *vs)
{
	struct version *v;

	TAILQ_FOREACH(v, &vs->queue, in_order)
	if (v->dead_seq && !is_pinned_locked(vs, v->seq, v->dead_seq))
		break;
	return v;
}

uint64_t version_give_up(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;
	struct bound *b;
	uint64_t target;

	mutex_lock(&vs->lock);
	while ((b = STAILQ_FIRST(&vs->bounds))) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	mutex_unlock(&vs->lock);
	target = version_next_target(e);
	for (;;) {
		uint64_t id = 0;

		mutex_lock(&vs->lock);
		v = next_unpinned_locked(vs);
		if (v) {
			id = v->id;
			unlink_locked(vs, v);
			if (v->held)
				v = NULL; /* freed by version_unhold() */
		}
		mutex_unlock(&vs->lock);
		if (!id)
			break;
		if (v)
			version_free(e, v);
		backing_version_gone(e, id);
	}
	return target;
}

/* ---- content ---------------------------------------------------------- */

static int read_whole(int fd, void *buf, size_t len)
{
	size_t at = 0;

	memset(buf, 0, len);
	while (at < len) {
		ssize_t n = pread(fd, (char *)buf + at, len - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		at += (size_t)n;
	}
	return 0;
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
	r = read_whole(fd, buf, len);
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
	v = find_locked(vs, id);
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
	v = find_locked(vs, id);
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
	v = find_locked(vs, id);
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
	if (copy.size != size || !copy.crcs)
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
	int r;

	r = t->ops->open(t, b->id, O_RDONLY, &src);
	if (r < 0)
		return r;
	r = choose_backing(e, size, &own, &dst);
	if (r < 0)
		return r;
	r = copy_content(src, dst, size, NULL);
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
	r = t->ops->create(t, file, &dst);
	if (r < 0)
		return r;
	r = copy_content(src, dst, copy.size, copy.crcs);
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

int version_preserve(struct engine *e, uint64_t id, struct backing *b)
{
	struct versions *vs = &e->versions;
	struct version *v;
	int r;

	if (!id)
		return 0;
	mutex_lock(&vs->lock);
	v = find_locked(vs, id);
	if (v)
		version_hold_locked(v);
	mutex_unlock(&vs->lock);
	if (!v)
		return b->where == BACKING_NVME ? preserve_nvme_copy(e, id, b)
						: 0;
	if (v->backing != b)
		r = 0; /* it has its own already */
	else if (b->where == BACKING_NVME && v->size > META_SMALL_MAX)
		r = -EAGAIN; /* until it is recorded; then copied */
	else
		r = preserve_unrecorded(e, v, b);
	version_unhold(e, v);
	return r;
}

/* -EAGAIN: not yet; record: it is flushed, and must be recorded. */
static int ask_flushed_locked(struct versions *vs, uint64_t id, bool *record)
{
	struct version *v = find_locked(vs, id);
	bool spilled;

	if (!v)
		return 0;
	spilled = v->backing && v->backing->where == BACKING_NVME;
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

	if (fd < 0)
		return -errno;
	for (size_t at = 0; at < len;) {
		ssize_t n = pwrite(fd, (const char *)data + at, len - at,
				   (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
	}
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

int version_open_bytes(struct engine *e, uint64_t version, int *fd,
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
	if (!r && b && b->where == BACKING_DRAM && b->recorded &&
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

/* ---- the flusher ------------------------------------------------------ */

/* Its flush may turn out to be this version's as well. */
static bool waits_for_base(const struct version *v)
{
	const struct version *b = v->base;

	return b && (b->state == VERSION_RUNNING ||
		     (b->state == VERSION_QUEUED && !b->gone));
}

static struct version *next_work_locked(struct versions *vs, int64_t now,
					int64_t *wait_ns)
{
	struct version *v;

	*wait_ns = -1;
	TAILQ_FOREACH(v, &vs->queue, in_order)
	{
		if (v->state == VERSION_QUEUED && !waits_for_base(v))
			return v;
		if (v->state != VERSION_FAILED)
			continue;
		if (v->retry_ns <= now)
			return v;
		if (*wait_ns < 0 || v->retry_ns - now < *wait_ns)
			*wait_ns = v->retry_ns - now;
	}
	return NULL;
}

static struct version *take_work(struct versions *vs)
{
	struct version *v = NULL;
	int64_t wait_ns;

	mutex_lock(&vs->lock);
	while (!vs->stop) {
		v = next_work_locked(vs, now_mono_ns(), &wait_ns);
		if (v)
			break;
		if (wait_ns < 0)
			pthread_cond_wait(&vs->work, &vs->lock.m);
		else
			cond_wait_ns(&vs->work, &vs->lock, wait_ns);
	}
	if (v) {
		v->state = VERSION_RUNNING;
		version_hold_locked(v);
	}
	mutex_unlock(&vs->lock);
	return v;
}

static bool changed_since(int fd, const struct stat *before)
{
	struct stat st;

	return fstat(fd, &st) || st.st_size != before->st_size ||
	       st.st_ctim.tv_sec != before->st_ctim.tv_sec ||
	       st.st_ctim.tv_nsec != before->st_ctim.tv_nsec;
}

/* A snapshot is copied again while it changes under the copy. */
static int run_stable(const struct flush_job *job)
{
	struct stat st;
	int r = 0;

	for (int i = 0; i < N_STABLE_TRIES; i++) {
		if (fstat(job->src_fd, &st))
			return -errno;
		r = flush_run(job);
		if (r < 0 || job->final || !changed_since(job->src_fd, &st))
			break;
	}
	return r;
}

/* Nobody else can find it any more. */
static bool may_give_locked(const struct version *b)
{
	return b->gone && !b->recorded && b->state == VERSION_FLUSHED &&
	       b->file == b->id;
}

/* The base was flushed, nobody needs its file any more, and it holds the very
 * bytes: the file is v's. */
static bool take_file_of_base(struct engine *e, struct version *v, int fd)
{
	struct versions *vs = &e->versions;
	struct version *b = v->base;
	uint32_t n = (uint32_t)N_CHUNKS(v->size);
	bool taken;

	mutex_lock(&vs->lock);
	taken = may_give_locked(b) && b->size == v->size;
	mutex_unlock(&vs->lock);
	if (!taken || checksum_verify(fd, v->size, b->crcs, n, NULL))
		return false;
	mutex_lock(&vs->lock);
	taken = may_give_locked(b);
	if (taken) {
		b->gave_file = v->took_file = true;
		v->file = b->file;
		free(v->crcs);
		v->crcs = MOVE(b->crcs);
	}
	mutex_unlock(&vs->lock);
	if (taken) /* what was set aside for it */
		(void)!e->nvme->ops->remove(e->nvme, v->id);
	return taken;
}

static void base_done(struct engine *e, struct version *v)
{
	struct version *b;

	mutex_lock(&e->versions.lock);
	b = v->base;
	v->base = NULL;
	mutex_unlock(&e->versions.lock);
	if (b)
		version_unhold(e, b);
}

static int flush_version(struct engine *e, struct version *v, struct backing *b)
{
	struct tier *src = backing_tier(e, b->where);
	CLEANUP(close_p) int fd = -1;
	CLEANUP(free_p)
	uint32_t *crcs = calloc(N_CHUNKS(v->size) + 1, sizeof(*crcs));
	bool in_place = b->where == BACKING_NVME && v->final;
	int r;

	if (!crcs)
		return -ENOMEM;
	r = src->ops->open(src, b->id, O_RDONLY, &fd);
	if (r < 0)
		return r;
	if (v->base && b->where == BACKING_DRAM && take_file_of_base(e, v, fd))
		return 0;
	struct flush_job job = {
		.src_fd = fd,
		.size = v->size,
		.final = v->final,
		.dst = e->nvme,
		.dst_id = v->id,
		.in_place = in_place,
		.throttle = e->throttle,
		.progress = &e->flushed_bytes,
		.crcs = crcs,
	};
	r = run_stable(&job);
	if (r < 0)
		return r;
	mutex_lock(&e->versions.lock);
	free(v->crcs);
	v->crcs = MOVE(crcs);
	v->file = in_place ? b->id : v->id;
	mutex_unlock(&e->versions.lock);
	return 0;
}

static void flush_failed_locked(struct version *v, int r)
{
	v->state = VERSION_FAILED;
	v->error = r;
	v->backoff_ns = v->backoff_ns ? v->backoff_ns * 2 : BACKOFF_MIN_NS;
	if (v->backoff_ns > BACKOFF_MAX_NS)
		v->backoff_ns = BACKOFF_MAX_NS;
	v->retry_ns = now_mono_ns() + v->backoff_ns;
}

static void flush_finish(struct engine *e, struct version *v, int r)
{
	struct versions *vs = &e->versions;
	char path[META_PATH_MAX];
	bool first;

	mutex_lock(&vs->lock);
	first = r < 0 && !v->error;
	if (r < 0)
		flush_failed_locked(v, r);
	else
		v->state = VERSION_FLUSHED;
	if (r == 0)
		v->error = 0;
	pthread_cond_broadcast(&vs->changed);
	mutex_unlock(&vs->lock);
	if (first) {
		if (view_path(meta_accepted(e->meta), v->ino, path))
			snprintf(path, sizeof(path), "inode %lu",
				 (unsigned long)v->ino);
		message_error("cannot flush '%s': %s", path, strerror(-r));
	}
	version_unhold(e, v);
	follow_kick(e, false);
}

void *flusher_main(void *arg)
{
	struct engine *e = arg;
	struct version *v;

	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 5);
	while ((v = take_work(&e->versions))) {
		struct backing *b;
		int r;

		mutex_lock(&e->versions.lock);
		b = v->backing;
		if (b)
			backing_get(e, b);
		mutex_unlock(&e->versions.lock);
		r = b ? flush_version(e, v, b) : -EIO;
		backing_put(e, b);
		base_done(e, v);
		flush_finish(e, v, r);
	}
	return NULL;
}
