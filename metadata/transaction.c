/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door. A transaction collects operations; the commit writes them, with
 * their log entry, as one RocksDB batch to the accepted database. One
 * transaction exists, inside struct meta; its buffers stay warm.
 *
 *   txn_begin      door taken, number = last + 1
 *   txn_put, ...   operations into `shared` (logged) or `local` (not)
 *   txn_next       log entry and shared go to local; number + 1
 *   txn_commit     local + log entry + shared -> one write -> number is out
 *
 * Invariants: 1. The log holds every number above D, without a gap within an
 * epoch. 2. A number is visible (meta_accepted_seq) only after its batch is.
 * 3. A number whose write failed is given out again only if the database
 * does not show it (`settle`).
 */
#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "metadata/fault.h"
#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/log_message.h"
#include "metadata/record.h"

#define KEEP_BYTES ((size_t)256 << 10)
#define CHECK_COMMITS 256
#define CHECK_BYTES ((size_t)1 << 20)
#define MIB (UINT64_C(1) << 20)

/* ---- begin and end ---------------------------------------------------- */

/* After a reopen of the accepted database, its log says what was given. */
static int settle(struct meta *m)
{
	uint64_t last, len, d = m->nvme_seq;
	int err;

	if (m->accepted_generation == m->accepted.generation)
		return 0;
	err = log_measure(m, d, &last, &len);
	if (err)
		return err;
	m->accepted_generation = m->accepted.generation;
	if (last > m->accepted_seq)
		m->accepted_seq = last;
	m->log_len = len;
	return 0;
}

static uint64_t next_seq(const struct meta *m)
{
	uint64_t first = (m->id.epoch << EPOCH_BITS) + 1;
	uint64_t next = m->accepted_seq + 1;

	return next < first ? first : next;
}

static void begin_number(struct txn *t)
{
	t->n_dentries = 0;
	bytes_clear(&t->shared, KEEP_BYTES);
	bytes_clear(&t->event, KEEP_BYTES);
}

TSA(no_thread_safety_analysis)
struct txn *txn_begin(struct meta *m)
{
	struct txn *t = &m->txn;

	mutex_lock(&m->door);
	t->m = m;
	t->broken = t->error = settle(m);
	t->seq = next_seq(m);
	t->frees = t->moves_dir = false;
	t->refused = 0;
	t->last = 0;
	t->ended_len = t->local_from = 0;
	bytes_clear(&t->local, KEEP_BYTES);
	begin_number(t);
	return t;
}

TSA(no_thread_safety_analysis)
void txn_abort(struct txn *t)
{
	mutex_unlock(&t->m->door);
}

uint64_t txn_seq(const struct txn *t)
{
	return t->seq;
}

size_t txn_len(const struct txn *t)
{
	return t->ended_len + t->shared.len + t->event.len;
}

void txn_frees(struct txn *t)
{
	t->frees = true;
}

void txn_refuse(struct txn *t, int err)
{
	t->refused = err;
}

bool meta_keeps_events(const struct meta *m)
{
	return m->keep_events;
}

static void fail(struct txn *t, int err)
{
	if (!t->error)
		t->error = err;
}

/* ---- commit ----------------------------------------------------------- */

/*
 * Two bounds. Everybody needs a quarter of the filesystem free (within
 * reason): RocksDB flushes and compacts there. Transactions that make room
 * go on nearly to the end; then they too are refused, because a database
 * that cannot even be reopened could not be read either.
 */
static void measure_room(struct meta *m)
{
	uint64_t total = store_filesystem_len(&m->accepted), room, want, least;

	reserve_make(&m->accepted);
	room = reserve_free_room(&m->accepted);
	want = total / 4;
	want = want < 8 * MIB ? 8 * MIB : want > 96 * MIB ? 96 * MIB : want;
	least = reserve_is_held(&m->accepted) ? MIB
					      : m->accepted.reserve_len / 2;
	m->no_room = room < want || !reserve_is_held(&m->accepted);
	m->no_room_at_all = room < least;
}

static int check_room(struct meta *m, const struct txn *t)
{
	m->unchecked_len += txn_len(t);
	if (m->no_room || ++m->n_unchecked >= CHECK_COMMITS ||
	    m->unchecked_len >= CHECK_BYTES) {
		m->n_unchecked = 0;
		m->unchecked_len = 0;
		measure_room(m);
	}
	if (m->no_room_at_all || (m->no_room && !t->frees))
		return -ENOSPC;
	return 0;
}

static void add_log_entry(struct txn *t)
{
	size_t len = LOG_HEAD + t->event.len + t->shared.len;
	struct key key;
	uint8_t *p;

	key_number(&key, t->seq);
	p = op_put_room(&t->local, CF_LOG, key_slice(&key), len);
	if (!p)
		return;
	p[0] = RECORD_VERSION;
	p[1] = t->m->keep_events ? LOG_EVENTS : 0;
	put_le(p + 2, t->event.len, 4);
	p += LOG_HEAD;
	if (t->event.len)
		memcpy(p, t->event.p, t->event.len);
	if (t->shared.len)
		memcpy(p + t->event.len, t->shared.p, t->shared.len);
}

static bool has_entry(const struct txn *t)
{
	return t->shared.len || t->event.len;
}

void txn_undo(struct txn *t)
{
	t->error = t->broken;
	begin_number(t);
	t->local.len = t->local_from;
	t->local.failed = false;
}

int txn_next(struct txn *t)
{
	int err = t->error;

	if (t->shared.failed || t->local.failed || t->event.failed)
		err = err ? err : -ENOMEM;
	if (!err && has_entry(t)) {
		add_log_entry(t);
		bytes_append(&t->local, t->shared.p, t->shared.len);
		if (t->local.failed)
			err = -ENOMEM;
	}
	if (err) {
		txn_undo(t);
		return err;
	}
	if (has_entry(t)) {
		t->ended_len += LOG_HEAD + t->event.len + t->shared.len;
		t->last = t->seq++;
	}
	t->local_from = t->local.len;
	begin_number(t);
	return 0;
}

static int write_batch(struct txn *t)
{
	struct meta *m = t->m;
	struct slice run = bytes_slice(&t->local);
	struct key key;
	int err = FAULT("txn.commit", -ENOSPC);

	if (!err)
		err = store_write(&m->accepted, &run, 1, false);
	if (!err)
		(void)!FAULT("txn.committed", 0);
	if (!err || !t->last)
		return err;
	/* Tried twice and failed: did one of them reach the log after all? */
	key_number(&key, t->last);
	if (!store_has(&m->accepted, NULL, CF_LOG, key_slice(&key)))
		return 0;
	return err;
}

static int commit(struct txn *t)
{
	struct meta *m = t->m;
	int err = t->error;

	if (!err && !t->frees)
		err = t->refused;
	if (!err)
		err = check_room(m, t);
	if (!err)
		err = txn_next(t);
	if (err || !t->local.len)
		return err;
	err = write_batch(t);
	if (err || !t->last)
		return err;
	m->accepted_seq = t->last;
	m->log_len += t->ended_len;
	return 0;
}

TSA(no_thread_safety_analysis)
int txn_commit(struct txn *t, uint64_t *seq)
{
	struct meta *m = t->m;
	int err = commit(t);

	if (!err && t->moves_dir)
		path_cache_drop(&m->paths);
	if (!err && seq)
		*seq = m->accepted_seq;
	mutex_unlock(&m->door);
	return err;
}

/* ---- what goes in ----------------------------------------------------- */

void txn_event(struct txn *t, const struct event *ev)
{
	struct event stamped = *ev;
	struct timespec now;
	int err;

	if (!t->m->keep_events || ev->kind == EVENT_NONE)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	stamped.stamp_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	bytes_clear(&t->event, SIZE_MAX);
	err = event_encode(&t->event, &stamped);
	if (err)
		fail(t, err);
}

void txn_put_inode(struct txn *t, const struct inode_rec *rec)
{
	struct inode_rec r = *rec;
	struct key key;
	uint8_t *p;

	r.seq = t->seq;
	key_number(&key, r.ino);
	p = op_put_room(&t->shared, CF_INODE, key_slice(&key), INODE_LEN);
	if (p)
		inode_encode(p, &r);
}

struct del_arg {
	struct txn *t;
	enum cf cf;
};

static int del_entry(void *arg, struct slice key, struct slice val)
{
	const struct del_arg *d = arg;

	(void)val;
	op_del(&d->t->shared, d->cf, key);
	return 0;
}

void txn_del_inode(struct txn *t, const struct inode_rec *rec)
{
	struct del_arg arg = { t, CF_XATTR };
	struct key key;
	int err = 0;

	key_number(&key, rec->ino);
	op_del(&t->shared, CF_INODE, key_slice(&key));
	if (S_ISLNK(rec->mode))
		op_del(&t->shared, CF_SYMLINK, key_slice(&key));
	if (t->m->any_xattr)
		/* One by one: the log must say the same to the durable one. */
		err = store_scan_prefix(&t->m->accepted, NULL, CF_XATTR,
					key_slice(&key), (struct slice){ 0 },
					del_entry, &arg);
	if (err)
		fail(t, err);
}

void txn_put_dentry_at(struct txn *t, uint64_t parent, const char *name,
		       const struct dentry_rec *d)
{
	size_t name_len = strlen(name);
	struct key key;
	uint8_t *p;
	int err = key_named(&key, parent, name);

	if (err) {
		fail(t, err);
		return;
	}
	p = op_put_room(&t->shared, CF_DENTRY, key_slice(&key), DENTRY_LEN);
	if (p)
		dentry_encode(p, d);
	key_pair(&key, parent, d->cookie);
	p = op_put_room(&t->shared, CF_COOKIE, key_slice(&key),
			COOKIE_FIXED_LEN + name_len);
	if (p) {
		cookie_encode(p, d);
		memcpy(p + COOKIE_FIXED_LEN, name, name_len);
	}
	err = key_link(&key, d->ino, parent, name);
	if (err) {
		fail(t, err);
		return;
	}
	p = op_put_room(&t->shared, CF_NAME, key_slice(&key), NAME_LEN);
	if (p)
		name_encode(p, t->seq);
}

void txn_put_dentry(struct txn *t, uint64_t parent, const char *name,
		    uint64_t ino, uint32_t type)
{
	struct dentry_rec d = { .ino = ino, .type = type & S_IFMT };

	if (t->n_dentries >> COOKIE_BITS) {
		fail(t, -E2BIG);
		return;
	}
	d.cookie = t->seq << COOKIE_BITS | t->n_dentries++;
	txn_put_dentry_at(t, parent, name, &d);
}

void txn_del_dentry(struct txn *t, uint64_t parent, const char *name,
		    const struct dentry_rec *d)
{
	struct key key;
	int err = key_named(&key, parent, name);

	if (!err) {
		op_del(&t->shared, CF_DENTRY, key_slice(&key));
		key_pair(&key, parent, d->cookie);
		op_del(&t->shared, CF_COOKIE, key_slice(&key));
		err = key_link(&key, d->ino, parent, name);
	}
	if (err)
		fail(t, err);
	else
		op_del(&t->shared, CF_NAME, key_slice(&key));
	if (S_ISDIR(d->type))
		t->moves_dir = true;
}

void txn_put_version(struct txn *t, const struct version_rec *v)
{
	struct version_rec r = *v;
	struct key key;
	uint8_t *p;

	r.seq = t->seq;
	key_number(&key, r.id);
	p = op_put_room(&t->shared, CF_VERSION, key_slice(&key), VERSION_LEN);
	if (p)
		version_encode(p, &r);
}

static void del_number(struct bytes *ops, enum cf cf, uint64_t n)
{
	struct key key;

	key_number(&key, n);
	op_del(ops, cf, key_slice(&key));
}

void txn_del_version(struct txn *t, uint64_t version)
{
	del_number(&t->shared, CF_VERSION, version);
	if (t->m->any_tensor)
		del_number(&t->local, CF_TENSOR, version);
}

/* A version byte, then the bytes. */
static void put_plain(struct bytes *ops, enum cf cf, const struct key *key,
		      const void *p, size_t len)
{
	uint8_t *to = op_put_room(ops, cf, key_slice(key), 1 + len);

	if (!to)
		return;
	to[0] = RECORD_VERSION;
	if (len)
		memcpy(to + 1, p, len);
}

void txn_put_xattr(struct txn *t, uint64_t ino, const char *name,
		   const void *value, size_t len)
{
	struct key key;
	int err = key_named(&key, ino, name);

	if (err) {
		fail(t, err);
		return;
	}
	t->m->any_xattr = true;
	put_plain(&t->shared, CF_XATTR, &key, value, len);
}

void txn_del_xattr(struct txn *t, uint64_t ino, const char *name)
{
	struct key key;
	int err = key_named(&key, ino, name);

	if (err)
		fail(t, err);
	else
		op_del(&t->shared, CF_XATTR, key_slice(&key));
}

void txn_put_symlink(struct txn *t, uint64_t ino, const char *target)
{
	size_t len = strlen(target);
	struct key key;

	if (len >= META_PATH_MAX) {
		fail(t, -ENAMETOOLONG);
		return;
	}
	key_number(&key, ino);
	put_plain(&t->shared, CF_SYMLINK, &key, target, len);
}

void txn_put_orphan(struct txn *t, uint64_t ino)
{
	struct key key;

	key_number(&key, ino);
	put_plain(&t->shared, CF_ORPHAN, &key, NULL, 0);
}

void txn_del_orphan(struct txn *t, uint64_t ino)
{
	del_number(&t->shared, CF_ORPHAN, ino);
}

void txn_put_unsealed(struct txn *t, const struct unsealed_rec *u)
{
	struct key key;
	uint8_t *p;

	key_number(&key, u->ino);
	p = op_put_room(&t->local, CF_UNSEALED, key_slice(&key), UNSEALED_LEN);
	if (p)
		unsealed_encode(p, u);
}

void txn_del_unsealed(struct txn *t, uint64_t ino)
{
	del_number(&t->local, CF_UNSEALED, ino);
}
