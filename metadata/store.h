/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RocksDB door: one database, its column families, and its reopening.
 *
 * RocksDB cannot resume after ENOSPC, so a write that fails for want of room
 * (or of descriptors, or of a working device) closes the database, opens it
 * again and is tried once more. That can happen at any moment, so nobody outside of store*.c
 * holds anything of RocksDB's; iterators live for one batch of entries, with
 * the lock held shared, and callbacks run without it. Snapshots are taken
 * anew at a reopen, or become stale (-ESTALE) if their state is gone.
 *
 * Threads: any. Errors: RocksDB's strings are logged here, see metadata.h.
 */
#ifndef CKPT_METADATA_STORE_H
#define CKPT_METADATA_STORE_H

#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "metadata/bytes.h"
#include "metadata/metadata.h"
#include "metadata/operation.h"

struct store_config {
	const char *dir;      /* the database is dir/db */
	bool durable;         /* which column families; how much memory */
	uint64_t reserve_len; /* durable: dir/reserve; 0: none. The accepted
				 one chooses its own. */
};

struct snapshot {
	const rocksdb_snapshot_t
		*rocks;                /* guarded by store.lock; NULL: stale */
	uint64_t seq;                  /* the state it shows; immutable */
	struct snapshot *next, **prev; /* guarded by store.list_lock */
};

struct store {
	char *dir, *path; /* immutable */
	bool durable;     /* immutable */
	uint64_t memory;  /* most that memtables hold; immutable */

	pthread_rwlock_t lock; /* shared: use db; exclusive: reopen */
	rocksdb_t *db;         /* guarded by lock; NULL: could not reopen */
	rocksdb_column_family_handle_t *cfs[CF_MAX]; /* guarded by lock */
	_Atomic uint64_t generation; /* grows with each reopen */
	_Atomic bool down;           /* the last reopen failed */

	/* immutable after store_open() */
	rocksdb_options_t *options, *cf_options[CF_MAX];
	rocksdb_cache_t *cache;
	rocksdb_readoptions_t *read;
	rocksdb_writeoptions_t *write, *write_sync;

	struct mutex write_lock;
	rocksdb_writebatch_t *batch; /* guarded by write_lock; kept warm */
	size_t batch_room;           /* guarded by write_lock: it has, about */

	struct mutex list_lock;
	struct snapshot *snapshots; /* guarded by list_lock */
	/* Called with the lock held: which state does the snapshot show?
	 * NULL: the database. 0: unknown. Immutable; may be NULL. */
	uint64_t (*state_seq)(struct store *s, const struct snapshot *snap);
	/* A reopening that shows less has lost what had been synced. */
	_Atomic uint64_t least_seq;

	struct mutex reserve_lock;
	uint64_t reserve_len;      /* immutable */
	_Atomic bool reserve_held; /* written under reserve_lock */
	unsigned
		n_writing; /* guarded by reserve_lock: they may need its room */
};

/*
 * Opens dir/db. With create: also makes it. *s is filled in place and must
 * not move; store_close() it also after an error.
 *
 *   -ENOENT      there is none (without create)
 *   -EOPNOTSUPP  it has column families that we do not know
 *   -EUCLEAN, -EBADMSG  it is damaged
 */
MUST_CHECK int store_open(struct store *s, const struct store_config *config,
			  bool create);
void store_close(struct store *s);

/* The value, borrowed for the call; what it returns is returned. It runs
 * with the lock held shared and must not come back to the store. */
typedef int value_fn(void *arg, const void *val, size_t len);
/* snap NULL: the newest state. -ENOENT: no such key. */
MUST_CHECK int store_get(struct store *s, const struct snapshot *snap,
			 enum cf cf, struct slice key, value_fn *fn, void *arg);
/* 0 or -ENOENT. */
MUST_CHECK int store_has(struct store *s, const struct snapshot *snap,
			 enum cf cf, struct slice key);

/*
 * Keys in [from, to) in order, until the callback returns non-zero, which is
 * then returned. to.len 0: to the end. The callback runs without a lock; key
 * and value are borrowed. Without a snapshot it sees each key that was there
 * all the time exactly once, others perhaps.
 */
typedef int entry_fn(void *arg, struct slice key, struct slice val);
MUST_CHECK int store_scan(struct store *s, const struct snapshot *snap,
			  enum cf cf, struct slice from, struct slice to,
			  entry_fn *fn, void *arg);
/* store_scan() of all keys that begin with prefix and are > after (a whole
 * key; len 0: all). */
MUST_CHECK int store_scan_prefix(struct store *s, const struct snapshot *snap,
				 enum cf cf, struct slice prefix,
				 struct slice after, entry_fn *fn, void *arg);

/*
 * Writes the operations of all runs as one batch. sync: also to the device.
 * After ENOSPC, EIO or EMFILE the database has been reopened and the write
 * tried again; if that fails too, it may or may not have happened (look).
 *
 *   -EUCLEAN  the runs are not operations
 */
MUST_CHECK int store_write(struct store *s, const struct slice *runs, size_t n,
			   bool sync);
/* No large batch for a while: its memory is given back. */
void store_rest(struct store *s);
static inline struct slice bytes_slice(const struct bytes *b)
{
	return (struct slice){ b->p, b->len };
}

/*
 * Gives back the files of a family whose keys are all below `to` and have
 * been deleted by a range. No compaction: that may need room to make room,
 * and waits for it.
 */
void store_reclaim(struct store *s, enum cf cf, struct slice to);

/* With its seq, which a reopening compares: both are taken under one hold of
 * the lock. -EIO: the state can't be read. */
MUST_CHECK int snapshot_take(struct store *s, struct snapshot *snap);
void snapshot_release(struct store *s, struct snapshot *snap);

/* Memory RocksDB takes for this database; an estimate of cf's keys. */
uint64_t store_memory(struct store *s);
uint64_t store_estimate_keys(struct store *s, enum cf cf);

/* store_get() by who holds the lock (state_seq). */
MUST_CHECK int store_get_held(struct store *s, const struct snapshot *snap,
			      enum cf cf, struct slice key, value_fn *fn,
			      void *arg);

/* ---- between store*.c only ---- */

/* Takes the lock shared with db open (tries to reopen it once). -EIO. */
MUST_CHECK int store_enter(struct store *s);
void store_leave(struct store *s);
/* Reopens unless somebody did since `generation`. */
MUST_CHECK int store_reopen(struct store *s, uint64_t generation);
/* Frees err; logs it as "what: err" unless that is ordinary (-ENOENT). */
MUST_CHECK int store_error(struct store *s, const char *what, char *err);

/* The reserve file (reserve.c). */
void reserve_make(struct store *s);    /* if there is room; else not held */
void reserve_release(struct store *s); /* gives its room to RocksDB */
/* A write: nobody makes the reserve again before it has ended. */
void reserve_write_begins(struct store *s);
void reserve_write_ended(struct store *s);
bool reserve_is_held(const struct store *s);
uint64_t reserve_free_room(const struct store *s); /* of the filesystem */
uint64_t store_filesystem_len(const struct store *s);

/* ---- bulk copy, at start-up only (store_copy.c) ---- */

/* Copies the shared column families of `from` into the empty `to`. */
MUST_CHECK int store_copy_shared(struct store *from, struct store *to);

/* A raw iterator for start-up, when nothing else uses the store. */
struct cursor {
	rocksdb_iterator_t *it;
	struct store *s;
};
MUST_CHECK int cursor_open(struct cursor *c, struct store *s, enum cf cf);
bool cursor_valid(const struct cursor *c);
void cursor_next(struct cursor *c);
struct slice cursor_key(const struct cursor *c);
struct slice cursor_val(const struct cursor *c);
MUST_CHECK int cursor_error(const struct cursor *c);
void cursor_close(struct cursor *c);

#endif
