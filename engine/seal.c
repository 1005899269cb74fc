/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals: a content becomes a version, with a number in the log. In three
 * steps, so that many seals can share one commit (settle.c):
 *
 *   seal_begin_locked     is there something to seal? what the file holds now
 *   seals_log             one transaction, a number for each
 *   seal_finish_locked    leases cut to the content, or all taken back
 *
 * Invariants
 *  1. Whoever seals holds the inode's lock through all three, and takes the
 *     door inside it: an event logged later has a larger number.
 *  2. A final seal says that nobody can write the file: the flusher may map
 *     it. The probe is a lease on our own read-only descriptor, taken and
 *     given back under the inode's lock, so that no open can stall on it
 *     (an OPEN for writing of this inode waits for that lock).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define MS INT64_C(1000000)
#define N_EXTENTS_SEEN 256
#define TICK_NS (20 * MS) /* coarse ctime may hide a change this long */

int look_at(struct inode *in, struct look *out)
{
	struct stat st;

	if (fstat(in->ro_fd, &st))
		return -errno;
	out->valid = true;
	out->size = (uint64_t)st.st_size;
	out->ctime = st.st_ctim;
	return 0;
}

bool look_same(const struct look *a, const struct look *b)
{
	return a->valid && b->valid && a->size == b->size &&
	       a->ctime.tv_sec == b->ctime.tv_sec &&
	       a->ctime.tv_nsec == b->ctime.tv_nsec;
}

bool writer_left_locked(struct engine *e, struct inode *in)
{
	if (in->n_unflushed || in->n_borrowed)
		return true;
	/* With no handle left, one that a dead daemon gave may live on. */
	if (in->n_handles && (in->served || !e->passthrough))
		return in->n_writers > 0;
	if (in->ro_fd < 0)
		return false;
	if (fcntl(in->ro_fd, F_SETLEASE, F_RDLCK) == 0) {
		fcntl(in->ro_fd, F_SETLEASE, F_UNLCK);
		return false;
	}
	/* A filesystem without leases leaves only the handles to ask. */
	return errno == EAGAIN ? true : in->n_writers > 0;
}

/* ---- did the content change since the last seal? ---------------------- */

static bool crcs_equal(int fd, uint64_t size, const uint32_t *crcs)
{
	return checksum_verify(fd, size, crcs, (uint32_t)N_CHUNKS(size),
			       NULL) == 0;
}

/* Stores through a dirty mapping move neither size nor ctime. */
static bool mapping_changed(struct engine *e, struct inode *in,
			    const struct look *now)
{
	CLEANUP(free_p) uint32_t *crcs = NULL;
	struct inode_rec rec;

	if (view_inode(meta_accepted(e->meta), in->ino, &rec))
		return true;
	if (rec.size != now->size ||
	    version_crcs(e, rec.version, rec.size, &crcs))
		return true;
	return !crcs_equal(in->ro_fd, rec.size, crcs);
}

static bool changed_since_seal(struct engine *e, struct inode *in,
			       const struct look *now)
{
	if (!look_same(&in->sealed, now))
		return true;
	if (!e->mgtime && now_wall_ns() - (now->ctime.tv_sec * 1000 * MS +
					   now->ctime.tv_nsec) <
				  TICK_NS)
		return true;
	return in->rdwr && mapping_changed(e, in, now);
}

/* ---- logging a seal --------------------------------------------------- */

struct path_list {
	struct engine *e;
	char **paths;
	size_t n;
};

static int add_path(void *arg, uint64_t parent, const char *name)
{
	struct path_list *l = arg;
	char buf[META_PATH_MAX];
	char **grown;
	int r;

	r = view_child_path(meta_accepted(l->e->meta), parent, name, buf);
	if (r == -ENAMETOOLONG) /* no name that a remote can hold */
		return 0;
	if (r < 0)
		return r;
	grown = realloc(l->paths, (l->n + 1) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	l->paths = grown;
	l->paths[l->n] = strdup(buf);
	if (!l->paths[l->n])
		return -ENOMEM;
	l->n++;
	return 0;
}

static void path_list_fini(struct path_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->paths[i]);
	free(l->paths);
}

static int add_seal_event(struct engine *e, struct txn *t,
			  const struct inode_rec *rec)
{
	CLEANUP(path_list_fini) struct path_list l = { .e = e };
	CLEANUP(free_p) void *xattrs = NULL;
	struct event ev = { .kind = EVENT_SEAL };
	int r;

	if (!meta_keeps_events(e->meta))
		return 0;
	r = view_names(meta_accepted(e->meta), rec->ino, add_path, &l);
	if (r == 0)
		r = event_xattrs_encode(meta_accepted(e->meta), rec->ino,
					&xattrs, &ev.value_len);
	if (r < 0)
		return r;
	ev.value = xattrs;
	ev.version = rec->version;
	ev.rec = *rec;
	ev.paths = (const char *const *)l.paths;
	ev.n_paths = l.n;
	txn_event(t, &ev);
	return 0;
}

/* Blocks of the content in units of 512 bytes: what a lease allocated behind
 * it or in its holes is ours, not the user's. */
uint64_t content_blocks(int fd, const struct stat *st)
{
	uint64_t size = (uint64_t)st->st_size, blocks = 0;
	uint64_t held = (uint64_t)st->st_blocks;
	off_t data, end = 0;

	if (held * 512 < size) /* sparse, and no lease in it */
		return held;
	if (size < LEASE_FROM)
		return (size + 4095) / 4096 * 8;
	for (int n = 0; n < N_EXTENTS_SEEN; n++) {
		data = lseek(fd, end, SEEK_DATA);
		if (data < 0)
			return blocks;
		end = lseek(fd, data, SEEK_HOLE);
		if (end < 0)
			break;
		blocks += (uint64_t)(end - data + 4095) / 4096 * 8;
	}
	return (size + 4095) / 4096 * 8;
}

static void rec_take_content(struct inode_rec *rec, int fd,
			     const struct stat *st, uint64_t version)
{
	rec->size = (uint64_t)st->st_size;
	rec->blocks = content_blocks(fd, st);
	rec->mtime_ns = ns_of_timespec(st->st_mtim);
	if (ns_of_timespec(st->st_ctim) > rec->ctime_ns)
		rec->ctime_ns = ns_of_timespec(st->st_ctim);
	rec->version = version;
}

static bool unmoved_since(const struct look *sealed, const struct stat *st)
{
	struct look now = { true, (uint64_t)st->st_size, st->st_ctim };

	return look_same(sealed, &now);
}

/* Puts the records of the seal into t; v is in the table afterwards. */
static int fill_seal(struct engine *e, struct seal *s, struct txn *t)
{
	struct inode *in = s->in;
	struct version *v = s->v;
	struct version_rec vr;
	struct inode_rec rec;
	uint64_t before;
	int r;

	r = view_inode(meta_accepted(e->meta), in->ino, &rec);
	if (r == 0)
		r = FAULT("seal.read", -EUCLEAN);
	if (r < 0)
		return r;
	before = rec.version;
	if (before)
		drop_version(e, t, before);
	rec_take_content(&rec, in->ro_fd, &s->st, v->id);
	txn_put_inode(t, &rec);
	vr = (struct version_rec){
		.id = v->id,
		.ino = in->ino,
		.size = v->size,
		.blocks = rec.blocks,
		.backing = in->backing->id,
		.where = in->backing->where,
		.flags = v->final ? 0 : VERSION_SNAPSHOT,
	};
	txn_put_version(t, &vr);
	if (v->final)
		txn_del_unsealed(t, in->ino);
	r = add_seal_event(e, t, &rec);
	if (r == 0)
		r = FAULT("seal.log", -ENOMEM);
	if (r < 0)
		return r;
	if (v->final && unmoved_since(&in->sealed, &s->st))
		version_begin_from(e, v, before);
	v->seq = txn_seq(t);
	v->logging = true;
	version_insert(e, v);
	s->v = NULL; /* the table's */
	return 0;
}

/* The version that a snapshot sealed turned out to be the last content. */
static int fill_confirmation(struct engine *e, struct seal *s, struct txn *t)
{
	if (s->in->backing)
		version_confirm(e, s->in->backing->version);
	txn_del_unsealed(t, s->in->ino);
	return 0;
}

static void free_unlogged(struct engine *e, struct version *v)
{
	backing_put(e, v->backing);
	free(v->small);
	free(v);
}

static bool has_version(const struct seal *s)
{
	return s->what == SEAL_VERSION;
}

static void put_seal(struct engine *e, struct seal *s, struct txn *t)
{
	size_t n_drops = e->n_drops;

	s->err = has_version(s) ? fill_seal(e, s, t)
				: fill_confirmation(e, s, t);
	if (s->err)
		txn_undo(t);
	else
		s->err = txn_next(t);
	if (s->err)
		e->n_drops = n_drops;
}

/* With the door given back: it is in the table, or not even there. */
static void end_version(struct engine *e, struct seal *s)
{
	if (!s->err)
		version_logged(e, s->id);
	else if (s->v)
		free_unlogged(e, s->v);
	else
		version_discard(e, s->id);
	s->v = NULL;
}

void seals_log(struct engine *e, struct seal *seals, unsigned n)
{
	struct txn *t;
	uint64_t seq;
	int r = 0;

	while (n && seals[n - 1].what == SEAL_NOTHING)
		n--;
	if (!n)
		return;
	t = txn_begin(e->meta);
	for (unsigned i = 0; i < n; i++) {
		if (seals[i].what != SEAL_NOTHING && seal_failed(r))
			seals[i].err = r; /* it waits for those before it */
		else if (seals[i].what != SEAL_NOTHING)
			put_seal(e, &seals[i], t);
		if (!seal_failed(r))
			r = seals[i].err;
	}
	r = commit_and_drop(e, t, &seq);
	for (unsigned i = 0; i < n; i++) {
		if (r < 0 && seals[i].what != SEAL_NOTHING && !seals[i].err)
			seals[i].err = r;
		if (has_version(&seals[i]))
			end_version(e, &seals[i]);
	}
}

/* A small snapshot is captured now: its file goes on changing. */
static int capture_small(struct inode *in, struct version *v)
{
	v->small = malloc(v->size ? v->size : 1);
	if (!v->small)
		return -ENOMEM;
	return content_load(in->ro_fd, v->small, v->size);
}

static int make_version_locked(struct engine *e, struct inode *in,
			       struct seal *s) MUST_HOLD(in->lock);
static int make_version_locked(struct engine *e, struct inode *in,
			       struct seal *s)
{
	struct version *v;
	int r;

	if (fstat(in->ro_fd, &s->st))
		return -errno;
	v = version_new(in->next_version, in->ino, (uint64_t)s->st.st_size);
	if (!v)
		return -ENOMEM;
	v->final = s->final;
	if (!s->final && v->size <= META_SMALL_MAX) {
		r = capture_small(in, v);
		if (r < 0) {
			free_unlogged(e, v);
			return r;
		}
	}
	/* Also of what was captured: the file is all that outlives us. */
	backing_get(e, in->backing);
	v->backing = in->backing;
	s->before = in->backing->version;
	backing_set_version(e, in->backing, v->id);
	s->v = v;
	s->id = v->id;
	s->what = SEAL_VERSION;
	return 0;
}

/* Has it no name any more? The unlink that says so may still be under way,
 * and fail: it is over once we have been through the door. */
static bool is_orphan(struct engine *e, const struct inode *in)
{
	struct inode_rec rec;
	int r;

	if (!in->orphan)
		return false;
	txn_abort(txn_begin(e->meta));
	r = view_inode(meta_accepted(e->meta), in->ino, &rec);
	return r == -ENOENT || (r == 0 && !rec.nlink);
}

/*
 * A version that NVMe has no room for would stop D, and with it the deletions
 * that make room. close(2) has said so; the file counts as being written until
 * there is room, or it is gone, and what was set aside for it goes back.
 */
static void refuse_locked(struct engine *e, struct inode *in, struct seal *s,
			  uint64_t size) MUST_HOLD(in->lock);
static void refuse_locked(struct engine *e, struct inode *in, struct seal *s,
			  uint64_t size)
{
	s->final = false;
	s->no_room = true;
	e->no_room = true;
	lease_drop_nvme_locked(e, in);
	if (in->error != -ENOSPC)
		message_error("inode %lu: nvme has no room for its %lu bytes: "
			      "it is not accepted until there is, or it is "
			      "removed",
			      (unsigned long)in->ino, (unsigned long)size);
	in->error = -ENOSPC;
	in->snapshot_ns = now_mono_ns();
}

void seal_begin_locked(struct engine *e, struct inode *in, bool final,
		       struct seal *s)
{
	struct look now = { 0 };

	*s = (struct seal){ .in = in, .final = final };
	if (!final && (!in->written || in->ro_fd < 0))
		return;
	if (is_orphan(e, in))
		return; /* nothing to keep */
	s->err = look_at(in, &now);
	if (s->err)
		return;
	if (!changed_since_seal(e, in, &now)) {
		s->what = final ? SEAL_CONFIRM : SEAL_NOTHING;
		return;
	}
	if (lease_nvme_locked(e, in, now.size) == -ENOSPC)
		refuse_locked(e, in, s, now.size);
	else
		s->err = make_version_locked(e, in, s);
}

static void sealed_locked(struct engine *e, struct inode *in,
			  const struct seal *s) MUST_HOLD(in->lock);
static void sealed_locked(struct engine *e, struct inode *in,
			  const struct seal *s)
{
	struct look now = { true, (uint64_t)s->st.st_size, s->st.st_ctim };

	if (s->st.st_size <= META_SMALL_MAX)
		lease_drop_nvme_locked(e, in);
	in->nvme_room = 0;
	in->streamed = false;
	in->next_version = meta_new_version(e->meta);
	in->sealed = now;
	in->snapshot_ns = now_mono_ns();
}

/* Whoever opened the file wrote nothing. */
static void confirmed_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
static void confirmed_locked(struct engine *e, struct inode *in)
{
	struct inode_rec rec;

	if (in->backing && !view_inode(meta_accepted(e->meta), in->ino, &rec) &&
	    rec.version)
		version_take_back(e, rec.version, in->backing);
}

int seal_finish_locked(struct engine *e, struct inode *in, const struct seal *s)
{
	if (has_version(s) && !s->err)
		sealed_locked(e, in, s);
	else if (has_version(s))
		backing_set_version(e, in->backing, s->before);
	/* It is tried again, and keeps the room that close promised. */
	if (seal_failed(s->err))
		return s->err;
	if (has_version(s) && s->err)
		lease_drop_nvme_locked(e, in);
	if (!s->final)
		return 0;
	if (s->what == SEAL_CONFIRM && !s->err)
		confirmed_locked(e, in);
	in->written = in->rdwr = false;
	in->sealed.valid = in->mark.valid = false;
	lease_drop_nvme_locked(e, in); /* if nothing was sealed */
	lease_trim_locked(e, in);
	if (in->backing)
		backing_drop_promise(e, in->backing);
	watch_remove(e, in);
	return 0;
}

static int seal_now_locked(struct engine *e, struct inode *in, bool final)
	MUST_HOLD(in->lock);
static int seal_now_locked(struct engine *e, struct inode *in, bool final)
{
	struct seal s;

	int r;

	seal_begin_locked(e, in, final, &s);
	seals_log(e, &s, 1);
	r = seal_finish_locked(e, in, &s);
	return s.no_room ? -ENOSPC : r;
}

int seal_final_locked(struct engine *e, struct inode *in)
{
	return seal_now_locked(e, in, true);
}

int seal_snapshot_locked(struct engine *e, struct inode *in)
{
	return seal_now_locked(e, in, false);
}

bool seal_failed(int err)
{
	return err && err != -ENOENT;
}

int settle_closed_locked(struct engine *e, struct inode *in)
{
	if (in->ro_fd < 0)
		return 0;
	if (!writer_left_locked(e, in))
		return seal_final_locked(e, in);
	return in->mark.valid ? seal_snapshot_locked(e, in) : 0;
}
