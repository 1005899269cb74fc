/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users are told: levels of files and trees, the state of the tiers,
 * free room; and eviction on demand. Reads only, but for eviction.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "engine/core.h"
#include "engine/version.h"

static const char *const level_names[] = { "dram", "nvme", "remote" };

const char *level_name(enum level l)
{
	return level_names[l];
}

int level_parse(const char *s, enum level *out)
{
	for (int i = 0; i < 3; i++)
		if (!strcmp(s, level_names[i])) {
			*out = (enum level)i;
			return 0;
		}
	return -EINVAL;
}

/* ---- files and trees -------------------------------------------------- */

static enum level level_of_seq(struct engine *e, uint64_t seq)
{
	if (e->remote && seq <= meta_remote_seq(e->meta))
		return LEVEL_REMOTE;
	return seq <= meta_nvme_seq(e->meta) ? LEVEL_NVME : LEVEL_DRAM;
}

static bool is_written(struct engine *e, uint64_t ino)
{
	struct inode *in = inode_find(e, ino);
	bool yes;

	if (!in)
		return false;
	mutex_lock(&in->lock);
	yes = in->written;
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return yes;
}

static bool has_copy(struct engine *e, uint64_t version, enum copy_tier tier)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };

	return version && meta_copy(e->meta, version, tier, &c) == 0;
}

/* What is renamed above it changes where it is found, not its own record. */
static int path_seq(struct engine *e, uint64_t ino, uint64_t seq, uint64_t *out)
{
	uint64_t path;
	int r = view_path_seq(meta_accepted(e->meta), ino, &path);

	if (r == 0)
		*out = path > seq ? path : seq;
	return r;
}

int engine_file_state(struct engine *e, uint64_t ino, struct file_state *out)
{
	struct inode_rec rec;
	struct backing *b;
	uint64_t seq = 0;
	int r;

	(void)settle(e);
	r = engine_stat(e, ino, &rec, NULL);
	if (r == 0)
		r = path_seq(e, ino, rec.seq, &seq);
	if (r < 0)
		return r;
	memset(out, 0, sizeof(*out));
	out->seq = seq;
	out->size = rec.size;
	out->writing = is_written(e, ino);
	out->level = out->writing ? LEVEL_DRAM : level_of_seq(e, seq);
	b = rec.version ? backing_of_version(e, rec.version) : NULL;
	out->in_dram = out->writing || (b && b->where == BACKING_DRAM);
	backing_put(e, b);
	out->on_nvme = has_copy(e, rec.version, COPY_NVME);
	out->on_remote = has_copy(e, rec.version, COPY_REMOTE);
	return 0;
}

typedef int tree_fn(struct engine *e, const struct inode_rec *rec, void *arg);

struct walk {
	struct engine *e;
	tree_fn *fn;
	void *arg;
	uint64_t *stack; /* directories to visit */
	size_t n, cap;
};

static int walk_push(struct walk *w, uint64_t ino)
{
	if (w->n == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 64;
		void *grown = realloc(w->stack, cap * sizeof(*w->stack));

		if (!grown)
			return -ENOMEM;
		w->stack = grown;
		w->cap = cap;
	}
	w->stack[w->n++] = ino;
	return 0;
}

static int walk_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	struct walk *w = arg;
	struct inode_rec rec;
	int r;

	(void)name;
	if (S_ISDIR(d->type))
		return walk_push(w, d->ino);
	r = view_inode(meta_accepted(w->e->meta), d->ino, &rec);
	if (r == -ENOENT)
		return 0; /* unlinked since */
	return r < 0 ? r : w->fn(w->e, &rec, w->arg);
}

/* ino and all below, directories before what is in them. */
static int walk_tree(struct engine *e, uint64_t ino, tree_fn *fn, void *arg)
{
	struct walk w = { .e = e, .fn = fn, .arg = arg };
	const struct view *v = meta_accepted(e->meta);
	struct inode_rec rec;
	int r;

	r = walk_push(&w, ino);
	while (r == 0 && w.n) {
		uint64_t at = w.stack[--w.n];

		r = view_inode(v, at, &rec);
		if (r == -ENOENT && at != ino) {
			r = 0;
			continue;
		}
		if (r == 0)
			r = fn(e, &rec, arg);
		if (r == 0 && S_ISDIR(rec.mode))
			r = view_readdir(v, at, 0, walk_entry, &w);
	}
	free(w.stack);
	return r;
}

static int count_one(struct engine *e, const struct inode_rec *rec, void *arg)
{
	struct tree_state *t = arg;
	enum level level = level_of_seq(e, rec->seq);

	if (rec->seq > t->seq)
		t->seq = rec->seq;
	if (S_ISDIR(rec->mode)) {
		t->n_dirs++;
		return 0;
	}
	if (S_ISREG(rec->mode) && is_written(e, rec->ino)) {
		t->n_writing++;
		level = LEVEL_DRAM;
	}
	t->n_files++;
	t->bytes += rec->size;
	t->n_at[level]++;
	t->bytes_at[level] += rec->size;
	return 0;
}

int engine_tree_state(struct engine *e, uint64_t ino, struct tree_state *out)
{
	int r;

	(void)settle(e);
	memset(out, 0, sizeof(*out));
	r = path_seq(e, ino, 0, &out->seq);
	if (r == 0)
		r = walk_tree(e, ino, count_one, out);
	out->level = out->n_writing ? LEVEL_DRAM : level_of_seq(e, out->seq);
	return r;
}

/* ---- eviction --------------------------------------------------------- */

struct evict {
	enum level level;
	uint64_t bytes, files;
};

static uint64_t drop_nvme_copy(struct engine *e, uint64_t version)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };

	if (meta_copy(e->meta, version, COPY_NVME, &c) || c.kind != COPY_FILE)
		return 0;
	if (meta_del_copy(e->meta, version, COPY_NVME))
		return 0;
	(void)!e->nvme->ops->remove(e->nvme, c.file);
	return c.size;
}

/* The inode's lock keeps opens out meanwhile. */
static uint64_t evict_nvme_copy(struct engine *e, const struct inode_rec *rec)
{
	struct backing *b;
	struct inode *in;
	uint64_t len = 0;
	bool fresh;

	if (inode_get(e, rec->ino, &fresh, &in))
		return 0;
	mutex_lock(&in->lock);
	b = backing_of_version(e, rec->version); /* read as tensors */
	if (!in->backing && !in->fetch && !(b && b->where == BACKING_NVME))
		len = drop_nvme_copy(e, rec->version);
	backing_put(e, b);
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return len;
}

static int evict_one(struct engine *e, const struct inode_rec *rec, void *arg)
{
	struct evict *ev = arg;
	uint64_t bytes;

	if (!S_ISREG(rec->mode) || !rec->version)
		return 0;
	bytes = dram_evict_version(e, rec->version);
	if (ev->level == LEVEL_REMOTE &&
	    level_of_seq(e, rec->seq) == LEVEL_REMOTE &&
	    has_copy(e, rec->version, COPY_REMOTE))
		bytes += evict_nvme_copy(e, rec);
	if (bytes)
		ev->files++;
	ev->bytes += bytes;
	return 0;
}

int engine_evict(struct engine *e, uint64_t ino, enum level level,
		 uint64_t *bytes, uint64_t *n_files)
{
	struct evict ev = { .level = level };
	int r;

	if (level == LEVEL_DRAM)
		return -EINVAL;
	r = walk_tree(e, ino, evict_one, &ev);
	*bytes = ev.bytes;
	*n_files = ev.files;
	return r;
}

/* ---- the tiers -------------------------------------------------------- */

static void status_dram(struct engine *e, struct tier_status *t)
{
	struct reserve_state rs;

	reserve_state(e->reserve, &rs);
	snprintf(t->name, sizeof(t->name), "dram");
	t->used = rs.charged;
	t->size = rs.limit;
	t->seq = meta_accepted_seq(e->meta);
	t->rate = e->rates[LEVEL_DRAM].lately;
	mutex_lock(&e->marks.lock);
	if (e->marks.error)
		snprintf(t->error, sizeof(t->error), "cannot seal: %s",
			 strerror(-e->marks.error));
	mutex_unlock(&e->marks.lock);
	if (rs.note[0])
		snprintf(t->note, sizeof(t->note), "%s", rs.note);
	else if (e->config.reserve)
		snprintf(t->note, sizeof(t->note), "%lu MiB held in reserve",
			 (unsigned long)(rs.ballast >> 20));
}

static void status_nvme(struct engine *e, struct tier_status *t)
{
	struct versions *vs = &e->versions;
	struct tier_room room = { 0 };
	struct version *v;

	snprintf(t->name, sizeof(t->name), "nvme");
	if (e->nvme->ops->room(e->nvme, &room) == 0) {
		t->used = room.used;
		t->size = room.total;
	}
	snprintf(t->note, sizeof(t->note), "%s", e->nvme->io);
	t->seq = meta_nvme_seq(e->meta);
	t->rate = e->rates[LEVEL_NVME].lately;
	mutex_lock(&vs->lock);
	t->behind_bytes = vs->bytes;
	v = TAILQ_FIRST(&vs->queue);
	if (v)
		t->behind_ns = now_mono_ns() - v->sealed_ns;
	mutex_unlock(&vs->lock);
	mutex_lock(&e->follow.lock);
	snprintf(t->error, sizeof(t->error), "%s", e->follow.error_text);
	mutex_unlock(&e->follow.lock);
}

/* Half of what is seen now, half of what was before: a short burst shows for
 * some seconds, and no more than a burst. */
static void sample(struct rate *r, uint64_t bytes, int64_t ns)
{
	double moved = (double)(bytes - r->bytes) * 1e9 / (double)ns;

	r->lately = (uint64_t)(moved / 2 + (double)r->lately / 2);
	r->bytes = bytes;
}

void rates_sample(struct engine *e, int64_t ns)
{
	struct publish_status ps = { 0 };

	if (e->publisher)
		publish_status(e->publisher, &ps);
	sample(&e->rates[LEVEL_DRAM], e->sealed_bytes, ns);
	sample(&e->rates[LEVEL_NVME], e->flushed_bytes, ns);
	sample(&e->rates[LEVEL_REMOTE], ps.bytes_done, ns);
}

struct unpublished {
	uint64_t bytes, n;
	int64_t oldest_ns;
};

static int count_event(void *arg, const struct event *ev)
{
	struct unpublished *u = arg;

	if (!u->oldest_ns)
		u->oldest_ns = ev->stamp_ns;
	if (ev->kind == EVENT_SEAL)
		u->bytes += ev->rec.size;
	return ++u->n > 100000; /* enough to say: far behind */
}

static void status_remote(struct engine *e, struct tier_status *t)
{
	struct publish_status ps = { 0 };
	struct unpublished u = { 0 };

	snprintf(t->name, sizeof(t->name), "remote");
	t->seq = meta_remote_seq(e->meta);
	publish_status(e->publisher, &ps);
	t->size = ps.room_total;
	t->used = ps.room_total - ps.room_avail;
	t->rate = e->rates[LEVEL_REMOTE].lately;
	snprintf(t->error, sizeof(t->error), "%s", ps.error);
	if (meta_events(e->meta, t->seq, count_event, &u) >= 0) {
		t->behind_bytes = u.bytes;
		if (u.oldest_ns)
			t->behind_ns = now_wall_ns() - u.oldest_ns;
	}
}

static void status_inodes(struct engine *e, struct engine_status *s)
{
	s->n_open = e->n_open;
	s->n_unsealed = e->n_unsealed;
	s->n_marks = e->marks.pending;
	s->n_spilled = e->n_spilled;
	s->n_fetched = e->n_fetched;
	s->fetched_bytes = e->fetcher ? fetcher_bytes(e->fetcher) : 0;
	mutex_lock(&e->backings.lock);
	s->n_evicted = e->backings.n_evicted;
	mutex_unlock(&e->backings.lock);
	mutex_lock(&e->versions.lock);
	s->n_unflushed = e->versions.n;
	s->unflushed_bytes = e->versions.bytes;
	mutex_unlock(&e->versions.lock);
}

void engine_status(struct engine *e, struct engine_status *s)
{
	static const char *const starts[] = { "fresh", "carried on",
					      "from what NVMe holds" };
	const uint8_t *uuid = meta_uuid(e->meta);

	memset(s, 0, sizeof(*s));
	for (int i = 0; i < 16; i++)
		snprintf(s->uuid + 2 * i, 3, "%02x", uuid[i]);
	s->epoch = meta_epoch(e->meta);
	snprintf(s->start, sizeof(s->start), "%s%s%s", starts[e->opened.start],
		 e->opened.reason[0] ? ": " : "", e->opened.reason);
	s->passthrough = e->passthrough;
	snprintf(s->io_note, sizeof(s->io_note), "%s", e->io_note);
	s->fsync = e->config.fsync;
	status_dram(e, &s->tier[0]);
	status_nvme(e, &s->tier[1]);
	if (e->remote)
		status_remote(e, &s->tier[2]);
	status_inodes(e, s);
	meta_usage(e->meta, &s->meta);
	snprintf(s->nvme_dir, sizeof(s->nvme_dir), "%s", e->nvme_dir);
	snprintf(s->dram_dir, sizeof(s->dram_dir), "%s", e->place.base);
	snprintf(s->remote, sizeof(s->remote), "%s",
		 e->remote ? e->remote->name : "");
}

int engine_statfs(struct engine *e, struct statvfs *out)
{
	struct meta_usage mu;
	struct tier_room room;
	int r;

	r = e->nvme->ops->room(e->nvme, &room);
	if (r < 0)
		return r;
	meta_usage(e->meta, &mu);
	memset(out, 0, sizeof(*out));
	out->f_bsize = 1u << 20;
	out->f_frsize = 4096;
	out->f_blocks = room.total / 4096;
	out->f_bfree = out->f_bavail = room.avail / 4096;
	out->f_files = mu.n_inodes + (UINT64_C(1) << 32);
	out->f_ffree = out->f_favail = UINT64_C(1) << 32;
	out->f_namemax = META_NAME_MAX;
	return 0;
}
