/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Using the database: get, scan, write, snapshots. Each takes the store's
 * lock shared for as long as it touches RocksDB and no longer; a failed
 * write is where the database is reopened.
 */
#include "metadata/store.h"

#include <errno.h>
#include <stdio.h>

#include "metadata/log_message.h"

#define KEEP_BATCH ((size_t)8 << 20)
#define REST_BATCH ((size_t)64 << 10)
#define SCAN_BYTES ((size_t)256 << 10)
#define WRITE_SLACK (UINT64_C(2) << 20)

/* rocksdb::kDisable: counting costs a tenth of a commit. Per thread. */
#define PERF_DISABLE 1

int store_enter(struct store *s)
{
	rocksdb_set_perf_level(PERF_DISABLE);
	for (int tries = 0; tries < 2; tries++) {
		uint64_t generation;
		int err;

		pthread_rwlock_rdlock(&s->lock);
		if (s->db)
			return 0;
		generation = s->generation;
		pthread_rwlock_unlock(&s->lock);
		err = store_reopen(s, generation);
		if (err)
			return err;
	}
	return -EIO;
}

void store_leave(struct store *s)
{
	pthread_rwlock_unlock(&s->lock);
}

/* ---- get -------------------------------------------------------------- */

static int get_locked(struct store *s, const struct snapshot *snap, enum cf cf,
		      struct slice key, value_fn *fn, void *arg)
{
	rocksdb_readoptions_t *ro = s->read;
	rocksdb_pinnableslice_t *pin;
	const char *val;
	char *msg = NULL;
	size_t len;
	int err;

	if (snap) {
		if (!snap->rocks)
			return -ESTALE;
		ro = rocksdb_readoptions_create();
		rocksdb_readoptions_set_snapshot(ro, snap->rocks);
	}
	pin = rocksdb_get_pinned_cf(s->db, ro, s->cfs[cf], key.p, key.len,
				    &msg);
	if (snap)
		rocksdb_readoptions_destroy(ro);
	if (msg)
		return store_error(s, "read", msg);
	if (!pin)
		return -ENOENT;
	val = rocksdb_pinnableslice_value(pin, &len);
	err = fn ? fn(arg, val, len) : 0;
	rocksdb_pinnableslice_destroy(pin);
	return err;
}

int store_get(struct store *s, const struct snapshot *snap, enum cf cf,
	      struct slice key, value_fn *fn, void *arg)
{
	int err = store_enter(s);

	if (err)
		return err;
	err = get_locked(s, snap, cf, key, fn, arg);
	store_leave(s);
	return err;
}

int store_get_held(struct store *s, const struct snapshot *snap, enum cf cf,
		   struct slice key, value_fn *fn, void *arg)
{
	return get_locked(s, snap, cf, key, fn, arg);
}

int store_has(struct store *s, const struct snapshot *snap, enum cf cf,
	      struct slice key)
{
	return store_get(s, snap, cf, key, NULL, NULL);
}

/* ---- scan ------------------------------------------------------------- */

struct scan {
	struct store *s;
	const struct snapshot *snap;
	enum cf cf;
	struct slice to;
	struct bytes from;    /* where the next batch begins */
	struct bytes entries; /* klen u32, vlen u32 (host order), key, value */
	size_t want;          /* entries of the next batch */
	bool end;
};

static void scan_fini(struct scan *sc)
{
	bytes_fini(&sc->from);
	bytes_fini(&sc->entries);
}

static void add_entry(struct scan *sc, rocksdb_iterator_t *it)
{
	size_t klen, vlen;
	const char *key = rocksdb_iter_key(it, &klen);
	const char *val = rocksdb_iter_value(it, &vlen);
	uint32_t lens[2] = { (uint32_t)klen, (uint32_t)vlen };

	bytes_append(&sc->entries, lens, sizeof(lens));
	bytes_append(&sc->entries, key, klen);
	bytes_append(&sc->entries, val, vlen);
}

/* The next batch begins at the smallest key above this one. */
static void set_from(struct scan *sc, rocksdb_iterator_t *it)
{
	size_t klen;
	const char *key = rocksdb_iter_key(it, &klen);

	bytes_clear(&sc->from, SIZE_MAX);
	bytes_append(&sc->from, key, klen);
	add_u8(&sc->from, 0);
}

static int fill_locked(struct scan *sc)
{
	rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
	rocksdb_iterator_t *it;
	char *msg = NULL;

	if (sc->snap)
		rocksdb_readoptions_set_snapshot(ro, sc->snap->rocks);
	if (sc->to.len)
		rocksdb_readoptions_set_iterate_upper_bound(ro, sc->to.p,
							    sc->to.len);
	it = rocksdb_create_iterator_cf(sc->s->db, ro, sc->s->cfs[sc->cf]);
	rocksdb_iter_seek(it, (const char *)sc->from.p, sc->from.len);
	sc->end = true;
	for (size_t n = 1; rocksdb_iter_valid(it); n++) {
		add_entry(sc, it);
		if (n == sc->want || sc->entries.len >= SCAN_BYTES) {
			set_from(sc, it);
			sc->end = false;
			break;
		}
		rocksdb_iter_next(it);
	}
	rocksdb_iter_get_error(it, &msg);
	rocksdb_iter_destroy(it);
	rocksdb_readoptions_destroy(ro);
	if (msg)
		return store_error(sc->s, "scan", msg);
	return sc->entries.failed || sc->from.failed ? -ENOMEM : 0;
}

static int fill(struct scan *sc)
{
	int err = store_enter(sc->s);

	if (err)
		return err;
	bytes_clear(&sc->entries, 2 * SCAN_BYTES);
	err = sc->snap && !sc->snap->rocks ? -ESTALE : fill_locked(sc);
	store_leave(sc->s);
	sc->want = sc->want < 1024 ? sc->want * 4 : 1024;
	return err;
}

static int hand_out(const struct scan *sc, entry_fn *fn, void *arg)
{
	const uint8_t *p = sc->entries.p, *end = p + sc->entries.len;
	int err = 0;

	while (!err && p < end) {
		uint32_t lens[2];
		struct slice key, val;

		memcpy(lens, p, sizeof(lens));
		p += sizeof(lens);
		key = (struct slice){ p, lens[0] };
		p += lens[0];
		val = (struct slice){ p, lens[1] };
		p += lens[1];
		err = fn(arg, key, val);
	}
	return err;
}

int store_scan(struct store *s, const struct snapshot *snap, enum cf cf,
	       struct slice from, struct slice to, entry_fn *fn, void *arg)
{
	CLEANUP(scan_fini)
	struct scan sc = {
		.s = s,
		.snap = snap,
		.cf = cf,
		.to = to,
		.want = 16,
	};
	int err = 0;

	bytes_append(&sc.from, from.p, from.len);
	if (sc.from.failed)
		return -ENOMEM;
	while (!err && !sc.end) {
		err = fill(&sc);
		if (!err)
			err = hand_out(&sc, fn, arg);
	}
	return err;
}

int store_scan_prefix(struct store *s, const struct snapshot *snap, enum cf cf,
		      struct slice prefix, struct slice after, entry_fn *fn,
		      void *arg)
{
	uint8_t to[64], from[sizeof(to) + META_NAME_MAX + 32];
	struct slice lo = prefix, hi = { to, prefix.len };

	if (prefix.len > sizeof(to) || after.len >= sizeof(from))
		return -EINVAL;
	memcpy(to, prefix.p, prefix.len);
	/* The smallest key above all with this prefix. */
	while (hi.len && ++to[hi.len - 1] == 0)
		hi.len--;
	if (after.len) {
		memcpy(from, after.p, after.len);
		from[after.len] = 0;
		lo = (struct slice){ from, after.len + 1 };
	}
	return store_scan(s, snap, cf, lo, hi, fn, arg);
}

/* ---- write ------------------------------------------------------------ */

static void batch_op(const struct store *s, rocksdb_writebatch_t *b,
		     const struct op *op)
{
	rocksdb_column_family_handle_t *cf = s->cfs[op->cf];

	switch (op->kind) {
	case OP_PUT:
		rocksdb_writebatch_put_cf(b, cf, op->key.p, op->key.len,
					  op->val.p, op->val.len);
		break;
	case OP_DEL:
		rocksdb_writebatch_delete_cf(b, cf, op->key.p, op->key.len);
		break;
	case OP_DEL_RANGE:
		rocksdb_writebatch_delete_range_cf(
			b, cf, op->key.p, op->key.len, op->val.p, op->val.len);
		break;
	}
}

static int batch_run(const struct store *s, rocksdb_writebatch_t *b,
		     struct slice run)
{
	struct reader r = reader_of(run.p, run.len);

	while (r.p != r.end) {
		struct op op;
		int err = op_next(&r, &op);

		if (err)
			return err;
		if (!s->cfs[op.cf])
			return -EUCLEAN;
		batch_op(s, b, &op);
	}
	return 0;
}

static int write_locked(struct store *s, rocksdb_writebatch_t *b,
			const struct slice *runs, size_t n, bool sync)
{
	char *msg = NULL;
	int err = 0;

	rocksdb_writebatch_clear(b);
	for (size_t i = 0; !err && i < n; i++)
		err = batch_run(s, b, runs[i]);
	if (err)
		return err;
	rocksdb_write(s->db, sync ? s->write_sync : s->write, b, &msg);
	return store_error(s, "write", msg);
}

/*
 * One writer at a time. RocksDB would queue them all the same (behind a
 * leader that may be syncing), so holding a lock here costs nothing and lets
 * them share a batch.
 */
static int write_once(struct store *s, const struct slice *runs, size_t n,
		      bool sync, size_t len, uint64_t *generation)
{
	int err;

	mutex_lock(&s->write_lock);
	err = store_enter(s);
	*generation = s->generation;
	if (!err) {
		err = write_locked(s, s->batch, runs, n, sync);
		if (len > s->batch_room)
			s->batch_room = len;
		store_leave(s);
	}
	mutex_unlock(&s->write_lock);
	return err;
}

/* A large batch leaves its memory behind. */
static void shrink_batch(struct store *s, size_t keep)
{
	mutex_lock(&s->write_lock);
	if (s->batch_room > keep) {
		rocksdb_writebatch_destroy(s->batch);
		s->batch = rocksdb_writebatch_create();
		s->batch_room = 0;
	}
	mutex_unlock(&s->write_lock);
}

void store_rest(struct store *s)
{
	shrink_batch(s, REST_BATCH);
}

/*
 * Rather than let RocksDB run into ENOSPC: a write goes on only if what is
 * free holds it twice (log and table) and all memtables, which is what it
 * takes to open the database again. The reserve is given up for that; so
 * what was reserved carries the batches that lead to room being made (an
 * unlink frees its file only after D), and the last of it only a reopening.
 */
static int check_disk(struct store *s, size_t len)
{
	uint64_t want = 2 * (uint64_t)len + s->memory + WRITE_SLACK;

	if (reserve_free_room(s) >= want)
		return 0;
	if (s->reserve_len && s->reserve_held)
		reserve_release(s);
	return reserve_free_room(s) >= want ? 0 : -ENOSPC;
}

/* RocksDB answers each write after these with the same error, also when there
 * is room, or are descriptors, again. */
static bool needs_reopening(int err)
{
	return err == -ENOSPC || err == -EIO || err == -EMFILE;
}

static int write_checked(struct store *s, const struct slice *runs, size_t n,
			 bool sync, size_t len)
{
	uint64_t generation;
	int err = s->durable ? check_disk(s, len) : 0;

	if (err)
		return err;
	err = write_once(s, runs, n, sync, len, &generation);
	if (needs_reopening(err)) {
		err = store_reopen(s, generation);
		if (!err)
			err = write_once(s, runs, n, sync, len, &generation);
	}
	return err;
}

int store_write(struct store *s, const struct slice *runs, size_t n, bool sync)
{
	size_t len = 0;
	int err;

	for (size_t i = 0; i < n; i++)
		len += runs[i].len;
	if (s->durable)
		reserve_write_begins(s);
	err = write_checked(s, runs, n, sync, len);
	if (s->durable)
		reserve_write_ended(s);
	if (len > KEEP_BATCH)
		shrink_batch(s, KEEP_BATCH);
	return err;
}

void store_reclaim(struct store *s, enum cf cf, struct slice to)
{
	rocksdb_flushoptions_t *o = rocksdb_flushoptions_create();
	char *msg = NULL;
	int err = store_enter(s);

	if (!err) {
		rocksdb_flushoptions_set_wait(o, 1);
		rocksdb_flush_cf(s->db, o, s->cfs[cf], &msg);
		err = store_error(s, "flush", msg);
		msg = NULL;
		if (!err)
			rocksdb_delete_file_in_range_cf(s->db, s->cfs[cf], "",
							0, to.p, to.len, &msg);
		err = err ? err : store_error(s, "delete files", msg);
		store_leave(s);
	}
	/* The next write meets the same trouble, and reopens. */
	(void)err;
	rocksdb_flushoptions_destroy(o);
}

/* ---- snapshots, sizes ------------------------------------------------- */

int snapshot_take(struct store *s, struct snapshot *snap)
{
	int err = store_enter(s);

	if (err)
		return err;
	*snap = (struct snapshot){ .rocks = rocksdb_create_snapshot(s->db) };
	snap->seq = s->state_seq ? s->state_seq(s, snap) : 0;
	if (s->state_seq && !snap->seq) {
		rocksdb_release_snapshot(s->db, snap->rocks);
		store_leave(s);
		return -EIO;
	}
	mutex_lock(&s->list_lock);
	snap->next = s->snapshots;
	snap->prev = &s->snapshots;
	if (snap->next)
		snap->next->prev = &snap->next;
	s->snapshots = snap;
	mutex_unlock(&s->list_lock);
	store_leave(s);
	return 0;
}

void snapshot_release(struct store *s, struct snapshot *snap)
{
	pthread_rwlock_rdlock(&s->lock);
	mutex_lock(&s->list_lock);
	*snap->prev = snap->next;
	if (snap->next)
		snap->next->prev = snap->prev;
	mutex_unlock(&s->list_lock);
	if (snap->rocks && s->db)
		rocksdb_release_snapshot(s->db, snap->rocks);
	pthread_rwlock_unlock(&s->lock);
}

static uint64_t property(struct store *s, enum cf cf, const char *name)
{
	uint64_t v = 0;

	if (!s->cfs[cf] || rocksdb_property_int_cf(s->db, s->cfs[cf], name, &v))
		return 0;
	return v;
}

uint64_t store_memory(struct store *s)
{
	uint64_t sum = 0;

	if (store_enter(s))
		return 0;
	for (int cf = 0; cf < CF_MAX; cf++) {
		sum += property(s, (enum cf)cf,
				"rocksdb.cur-size-all-mem-tables");
		sum += property(s, (enum cf)cf,
				"rocksdb.estimate-table-readers-mem");
	}
	sum += rocksdb_cache_get_usage(s->cache);
	store_leave(s);
	return sum;
}

uint64_t store_estimate_keys(struct store *s, enum cf cf)
{
	uint64_t n;

	if (store_enter(s))
		return 0;
	n = property(s, cf, "rocksdb.estimate-num-keys");
	store_leave(s);
	return n;
}
