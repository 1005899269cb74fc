/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals: when a version's content is fixed (DESIGN.md section 4.5).
 *
 * close(2) waits for FLUSH and for nothing else. So FLUSH marks an inode, and
 * before any event is logged the marks set before it are settled:
 *
 *   no writer left                → final seal
 *   writer left, content changed  → the mark is dropped: still being written
 *   writer left, nothing changed  → snapshot seal
 *
 * Invariants
 *  1. A mark leaves the list only when its seal has its number: settle()
 *     also waits for a mark that another thread is settling. One at a time,
 *     in the order of the closes: that is the order of the seals. Where the
 *     seal fails (no room, no memory) the mark stays and all behind it wait;
 *     no event is logged meanwhile but those that make room, or an fsync
 *     would promise, and `latest` name, what is not in the log.
 *  2. Whoever seals holds the inode's lock, then the door: an event logged
 *     later has a larger number.
 *  3. A final seal says that nobody can write the file: the flusher may map
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
#define MAPPED_EVERY (2000 * MS)
#define SETTLE_BY (100 * MS)
#define AWAKE (20 * MS)
#define N_EXTENTS_SEEN 256
#define N_MAPPED 64       /* looked at in one turn */
#define AGAIN (100 * MS)  /* after a seal that failed */
#define TICK_NS (20 * MS) /* coarse ctime may hide a change this long */

void mark_add(struct engine *e, struct inode *in)
{
	struct look now = { 0 };
	bool added = false;

	mutex_lock(&in->lock);
	if (in->ro_fd < 0 || look_at(in, &now))
		now.valid = false;
	in->mark = now;
	mutex_unlock(&in->lock);

	mutex_lock(&e->inodes.lock);
	in->refs++;
	mutex_unlock(&e->inodes.lock);
	mutex_lock(&e->marks.lock);
	in->marked_ns = now_mono_ns();
	if (!in->in_marks) {
		TAILQ_INSERT_TAIL(&e->marks.list, in, marked);
		in->in_marks = added = true;
		e->marks.n++;
		e->marks.pending++;
		if (e->marks.asleep)
			pthread_cond_signal(&e->marks.added);
	}
	mutex_unlock(&e->marks.lock);
	if (!added)
		inode_put(e, in);
}

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
	struct event ev = { .kind = EVENT_SEAL };
	int r;

	if (!meta_keeps_events(e->meta))
		return 0;
	r = view_names(meta_accepted(e->meta), rec->ino, add_path, &l);
	if (r < 0)
		return r;
	ev.version = rec->version;
	ev.rec = *rec;
	ev.paths = (const char *const *)l.paths;
	ev.n_paths = l.n;
	txn_event(t, &ev);
	return 0;
}

int64_t ts_ns(const struct timespec *ts)
{
	return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
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
	rec->mtime_ns = ts_ns(&st->st_mtim);
	if (ts_ns(&st->st_ctim) > rec->ctime_ns)
		rec->ctime_ns = ts_ns(&st->st_ctim);
	rec->version = version;
}

static bool unmoved_since(const struct look *sealed, const struct stat *st)
{
	struct look now = { true, (uint64_t)st->st_size, st->st_ctim };

	return look_same(sealed, &now);
}

/* Puts the records of the seal into t; v is in the table afterwards. */
static int fill_seal(struct engine *e, struct inode *in, struct txn *t,
		     const struct stat *st, struct version *v)
{
	struct inode_rec rec;
	struct version_rec vr;
	uint64_t before;
	int r;

	r = view_inode(meta_accepted(e->meta), in->ino, &rec);
	if (r < 0)
		return r;
	before = rec.version;
	if (before)
		drop_version(e, t, before);
	rec_take_content(&rec, in->ro_fd, st, v->id);
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
	if (v->final && unmoved_since(&in->sealed, st))
		version_begin_from(e, v, before);
	v->seq = txn_seq(t);
	version_insert(e, v);
	return 0;
}

static int log_seal(struct engine *e, struct inode *in, const struct stat *st,
		    struct version *v)
{
	struct txn *t = txn_begin(e->meta);
	uint64_t id = v->id, seq;
	int r;

	r = fill_seal(e, in, t, st, v);
	if (r < 0) {
		engine_txn_abort(e, t);
		backing_put(e, v->backing);
		free(v->small);
		free(v);
		return r;
	}
	r = commit_and_drop(e, t, &seq);
	if (r < 0)
		version_discard(e, id);
	return r;
}

/* A small snapshot is captured now: its file goes on changing. */
static int capture_small(struct inode *in, struct version *v)
{
	v->small = malloc(v->size ? v->size : 1);
	if (!v->small)
		return -ENOMEM;
	return content_load(in->ro_fd, v->small, v->size);
}

static int seal_locked(struct engine *e, struct inode *in, bool final)
	MUST_HOLD(in->lock);
static int seal_locked(struct engine *e, struct inode *in, bool final)
{
	struct version *v;
	struct stat st;
	int r;

	if (fstat(in->ro_fd, &st))
		return -errno;
	v = version_new(in->next_version, in->ino, (uint64_t)st.st_size);
	if (!v)
		return -ENOMEM;
	v->final = final;
	if (!final && v->size <= META_SMALL_MAX) {
		r = capture_small(in, v);
		if (r < 0) {
			free(v->small);
			free(v);
			return r;
		}
	}
	/* Also of what was captured: the file is all that outlives us. */
	backing_get(e, in->backing);
	v->backing = in->backing;
	backing_set_version(e, in->backing, v->id);
	r = log_seal(e, in, &st, v);
	if (r < 0) {
		backing_set_version(e, in->backing, 0);
		lease_drop_nvme_locked(e, in);
		return r;
	}
	if (st.st_size <= META_SMALL_MAX)
		lease_drop_nvme_locked(e, in);
	in->nvme_room = 0;
	in->streamed = false;
	in->next_version = meta_new_version(e->meta);
	in->sealed = (struct look){ true, (uint64_t)st.st_size, st.st_ctim };
	in->snapshot_ns = now_mono_ns();
	return 0;
}

/* The version that a snapshot sealed turned out to be the last content. */
static int confirm_locked(struct engine *e, struct inode *in)
{
	struct txn *t = txn_begin(e->meta);
	uint64_t seq;

	if (in->backing)
		version_confirm(e, in->backing->version);
	txn_del_unsealed(t, in->ino);
	return commit_and_drop(e, t, &seq);
}

static int seal_final_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
static int seal_final_locked(struct engine *e, struct inode *in)
{
	struct look now = { 0 };
	int r;

	r = look_at(in, &now);
	if (r < 0)
		return r;
	if (in->orphan)
		r = 0; /* it has no name any more: nothing to keep */
	else if (changed_since_seal(e, in, &now))
		r = seal_locked(e, in, true);
	else
		r = confirm_locked(e, in);
	if (r == -ENOENT) /* unlinked while we looked */
		r = 0;
	if (r < 0)
		return r;
	in->written = in->rdwr = false;
	in->sealed.valid = in->mark.valid = false;
	lease_drop_nvme_locked(e, in); /* if nothing was sealed */
	lease_trim_locked(e, in);
	if (in->backing)
		backing_drop_promise(e, in->backing);
	watch_remove(e, in);
	return 0;
}

int seal_snapshot_locked(struct engine *e, struct inode *in)
{
	struct look now = { 0 };
	int r;

	if (!in->written || in->orphan || in->ro_fd < 0)
		return 0;
	r = look_at(in, &now);
	if (r < 0)
		return r;
	if (!changed_since_seal(e, in, &now))
		return 0;
	r = seal_locked(e, in, false);
	return r == -ENOENT ? 0 : r;
}

/* ---- settling --------------------------------------------------------- */

/* May the same seal work later? Else waiting would hold up all others. */
static bool will_pass(int err)
{
	return err == -ENOSPC || err == -ENOMEM || err == -EIO ||
	       err == -EMFILE || err == -ENFILE;
}

/* false: leave the mark for later, because of *err if that is set. */
static bool settle_one_locked(struct engine *e, struct inode *in, bool force,
			      int *err) MUST_HOLD(in->lock);
static bool settle_one_locked(struct engine *e, struct inode *in, bool force,
			      int *err)
{
	struct look now = { 0 };
	int r = 0;

	if (!in->written || in->ro_fd < 0)
		return true;
	if (!writer_left_locked(e, in)) {
		r = seal_final_locked(e, in);
	} else if (look_at(in, &now) || !look_same(&in->mark, &now)) {
		return true;
	} else if (force) {
		r = seal_snapshot_locked(e, in);
	} else {
		return false;
	}
	if (will_pass(r)) {
		*err = r;
		return false;
	}
	if (r < 0) {
		message_error("cannot seal inode %lu: %s",
			      (unsigned long)in->ino, strerror(-r));
		in->error = r;
	}
	return true;
}

static struct inode *pop_mark_locked(struct engine *e, struct inode *in)
{
	TAILQ_REMOVE(&e->marks.list, in, marked);
	in->in_marks = false;
	e->marks.n--;
	e->marks.settling++;
	return in;
}

/* Its reference goes with it, or stays with the mark put back (true). */
static bool settle_popped(struct engine *e, struct inode *in, bool force,
			  int *err)
{
	bool done, news, put = true;

	*err = 0;
	mutex_lock(&in->lock);
	done = settle_one_locked(e, in, force, err);
	mutex_unlock(&in->lock);

	mutex_lock(&e->marks.lock);
	news = *err && !e->marks.error;
	if (done || *err)
		e->marks.error = *err;
	e->marks.settling--;
	if (!done && !in->in_marks) {
		/* It was the first: the order of the closes stays. */
		TAILQ_INSERT_HEAD(&e->marks.list, in, marked);
		in->in_marks = true;
		e->marks.n++;
		put = false;
	} else {
		e->marks.pending--;
	}
	pthread_cond_broadcast(&e->marks.settled);
	mutex_unlock(&e->marks.lock);
	if (news)
		message_error("cannot seal inode %lu: %s: nothing is accepted "
			      "until it is",
			      (unsigned long)in->ino, strerror(-*err));
	if (put)
		inode_put(e, in);
	return !put;
}

int settle(struct engine *e)
{
	struct inode *in;
	int err = 0;

	if (!e->marks.pending)
		return 0;
	mutex_lock(&e->marks.lock);
	while (!err && (e->marks.n || e->marks.settling)) {
		if (e->marks.settling) {
			/* Taken by another thread: wait until it has its
			 * number (or is back in the list). */
			pthread_cond_wait(&e->marks.settled, &e->marks.lock.m);
			continue;
		}
		in = pop_mark_locked(e, TAILQ_FIRST(&e->marks.list));
		mutex_unlock(&e->marks.lock);
		settle_popped(e, in, true, &err);
		mutex_lock(&e->marks.lock);
	}
	mutex_unlock(&e->marks.lock);
	return err;
}

void settle_released(struct engine *e, struct inode *in)
{
	bool first;
	int err;

	mutex_lock(&e->marks.lock);
	first = !e->marks.settling && TAILQ_FIRST(&e->marks.list) == in;
	if (first)
		pop_mark_locked(e, in);
	mutex_unlock(&e->marks.lock);
	if (first)
		settle_popped(e, in, false, &err);
}

/* The next look at a mark of this age: 1, 10, 100 ms after it was set. */
static int64_t next_look(int64_t age)
{
	if (age < 1 * MS)
		return 1 * MS - age;
	if (age < 10 * MS)
		return 10 * MS - age;
	return SETTLE_BY - age;
}

/* Settles what is due, in order: what was closed after a file that is left for
 * later waits, too. The time until the next look, or -1. */
static int64_t settle_due(struct engine *e)
{
	int64_t now = now_mono_ns(), age = 0;
	bool kept = false;
	struct inode *in;
	int err = 0;

	mutex_lock(&e->marks.lock);
	while (!kept) {
		while (e->marks.settling)
			pthread_cond_wait(&e->marks.settled, &e->marks.lock.m);
		in = TAILQ_FIRST(&e->marks.list);
		if (!in)
			break;
		age = now - in->marked_ns;
		pop_mark_locked(e, in);
		mutex_unlock(&e->marks.lock);
		kept = settle_popped(e, in, age >= SETTLE_BY, &err);
		mutex_lock(&e->marks.lock);
	}
	mutex_unlock(&e->marks.lock);
	if (!kept)
		return -1;
	if (err)
		return AGAIN;
	return next_look(age) > MS / 2 ? next_look(age) : MS / 2;
}

/* A file with a writable mapping and no descriptor. */
static bool mapped_only(struct engine *e, struct inode *in)
{
	bool marked, yes;
	int r;

	mutex_lock(&e->marks.lock);
	marked = in->in_marks;
	mutex_unlock(&e->marks.lock);
	mutex_lock(&in->lock);
	yes = !marked && in->written && in->n_handles == 0 &&
	      now_mono_ns() - in->snapshot_ns > MAPPED_EVERY;
	if (yes) {
		in->snapshot_ns = now_mono_ns();
		if (writer_left_locked(e, in))
			r = seal_snapshot_locked(e, in);
		else
			r = seal_final_locked(e, in);
		if (r < 0)
			in->error = r;
	}
	mutex_unlock(&in->lock);
	return yes;
}

static void look_at_mapped(struct engine *e)
{
	struct inode *batch[N_MAPPED];
	unsigned n = watch_take(e, batch, N_MAPPED);

	for (unsigned k = 0; k < n; k++) {
		mapped_only(e, batch[k]);
		inode_put(e, batch[k]);
	}
}

void *settler_main(void *arg)
{
	struct engine *e = arg;
	int64_t mapped_at = now_mono_ns(), marked_at = 0;

	for (;;) {
		int64_t now, wait = settle_due(e);
		bool stop;

		now = now_mono_ns();
		if (wait >= 0)
			marked_at = now;
		if (now - mapped_at > 500 * MS) {
			look_at_mapped(e);
			rates_sample(e, now - mapped_at);
			mapped_at = now;
		}
		mutex_lock(&e->marks.lock);
		/* Where files are closed all the time it is not woken for
		 * each: that costs more than the seal. */
		e->marks.asleep = wait < 0 && now - marked_at > AWAKE;
		if (wait < 0)
			wait = e->marks.asleep ? 500 * MS : MS;
		stop = e->marks.stop;
		if (!stop)
			cond_wait_ns(&e->marks.added, &e->marks.lock, wait);
		if (e->marks.asleep && e->marks.n)
			marked_at = now_mono_ns();
		mutex_unlock(&e->marks.lock);
		if (stop)
			return NULL;
	}
}

int settle_closed_locked(struct engine *e, struct inode *in)
{
	if (in->ro_fd < 0)
		return 0;
	if (!writer_left_locked(e, in))
		return seal_final_locked(e, in);
	return in->mark.valid ? seal_snapshot_locked(e, in) : 0;
}

bool engine_any_written(struct engine *e)
{
	return e->n_unsealed > 0;
}

int file_seal_written(struct engine *e, uint64_t ino)
{
	struct inode *in;
	int r = settle(e); /* what was closed before comes first */

	if (r < 0)
		return r;
	in = inode_find(e, ino);
	if (!in)
		return 0;
	mutex_lock(&in->lock);
	if (in->written && !writer_left_locked(e, in))
		r = seal_final_locked(e, in);
	else
		r = seal_snapshot_locked(e, in);
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}

int engine_seal_all(struct engine *e, uint64_t *seq)
{
	int r = settle(e);

	if (r == 0)
		*seq = meta_accepted_seq(e->meta);
	return r;
}

int engine_seal_tree(struct engine *e, uint64_t ino, uint64_t *seq)
{
	struct tree_state tree = { 0 };
	int r = engine_seal_all(e, &tree.seq);

	if (r == 0 && ino && ino != META_ROOT_INO)
		r = engine_tree_state(e, ino, &tree);
	if (r == 0)
		*seq = tree.seq;
	return r;
}
