/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rooms of the engine know of each other: struct engine and the
 * three tables in it (open inodes, unrecorded versions, backing files).
 * Inside engine/ only; the lock order stands in engine.h.
 */
#ifndef CKPT_ENGINE_CORE_H
#define CKPT_ENGINE_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/flush.h"
#include "engine/publish.h"
#include "engine/remote.h"
#include "engine/reserve.h"
#include "engine/restore.h"
#include "engine/stream.h"
#include "engine/tier.h"
#include "metadata/metadata.h"

#define N_BUCKETS 16384u
#define COPY_BELOW (1u << 20) /* shorter versions are copied, not waited for */

#define LEASE_FROM (UINT64_C(512) << 10) /* shorter files get no lease */

static inline unsigned bucket_of(uint64_t id)
{
	return (unsigned)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 50);
}

/* ---- backing files ---------------------------------------------------- */

/*
 * A backing file somebody may need: every one on DRAM, and on NVMe those that
 * an open inode or an unrecorded version holds. Guard: backings.lock, for all
 * fields but the immutable ones.
 */
struct backing {
	LIST_ENTRY(backing) by_id, by_version;
	TAILQ_ENTRY(backing) lru; /* evictable: cached, refs 0; or unwanted */
	uint64_t id;              /* immutable */
	enum backing_where where; /* immutable */
	uint64_t version;         /* whose content it is; 0: unsealed content */
	uint64_t charged;         /* bytes of the reserve it holds (DRAM) */
	uint64_t promised;        /* ... and may still take, for certain */
	uint64_t allocated;       /* bytes from 0 whose pages a lease has seen
				     to (DRAM); guard: its writer's inode */
	bool expected;            /* how long it will be was known; immutable */
	unsigned refs;
	bool recorded;  /* DRAM: its version has a synced copy elsewhere.
			  NVMe: the file is that copy, not ours to delete */
	bool in_lru;    /* DRAM, recorded, refs 0: may be evicted */
	uint64_t turns; /* how often it began to hold something else */
};

LIST_HEAD(backing_list, backing);

struct backings {
	struct mutex lock;
	struct backing_list by_id[N_BUCKETS], by_version[N_BUCKETS];
	TAILQ_HEAD(backing_queue, backing) lru;
	struct backing_queue unwanted; /* out of the tables, to be deleted */
	uint64_t n_evicted;
};

#define N_AHEAD 32

/* Made by the settler alone, taken by any thread. */
struct ahead {
	struct mutex lock; /* the rest */
	struct {
		uint64_t id;
		int fd, flags;
	} files[N_AHEAD];
	unsigned n;
	unsigned n_wanted; /* since the settler looked */
};

/* ---- unrecorded versions ---------------------------------------------- */

enum version_state {
	VERSION_QUEUED,
	VERSION_RUNNING,
	VERSION_FLUSHED,
	VERSION_FAILED,
};

/* Guard: versions.lock, but for the immutable fields. */
struct version {
	TAILQ_ENTRY(version) in_order; /* by seq */
	LIST_ENTRY(version) by_id;
	uint64_t id, ino, size, blocks; /* immutable */
	uint64_t seq;                   /* immutable: sealed at */
	uint64_t dead_seq;              /* made pointless at; 0: alive */
	int64_t sealed_ns;              /* monotonic */
	bool final;                     /* no writer was left */
	enum version_state state;
	struct backing *backing; /* holds a reference; NULL: `small` has it */
	void *small;             /* captured content, size bytes */
	uint32_t *crcs;          /* once FLUSHED, or in doubt and known */
	struct flush_doubt doubt;
	uint64_t file; /* NVMe file, once FLUSHED */
	/* Snapshot that was sealed just before, perhaps the same content: held
	 * until this one is flushed or freed. */
	struct version *base;
	bool gave_file; /* a later version has taken `file` ... */
	bool took_file; /* ... this one */
	int error;
	int64_t retry_ns; /* FAILED: not before */
	int64_t backoff_ns;
	bool logging;  /* its commit may fail yet: nobody works on it */
	unsigned held; /* somebody works on it: do not free */
	bool gone;     /* out of the table; freed when held is 0 */
	bool recorded; /* the durable database has its copy */
};

/*
 * A number that will be a target, chosen while it is the newest one: from
 * then on no version that the state at that number needs is dropped.
 */
struct bound {
	STAILQ_ENTRY(bound) next;
	uint64_t seq;
};

struct versions {
	struct mutex lock;
	pthread_cond_t work;    /* something QUEUED, or stop */
	pthread_cond_t changed; /* a state changed, or something was dropped */
	TAILQ_HEAD(version_queue, version) queue;
	LIST_HEAD(, version) by_id[N_BUCKETS];
	uint64_t target;             /* what the follower works towards: pins */
	STAILQ_HEAD(, bound) bounds; /* later targets: pin, too */
	uint64_t log_len, smalls_len, n_since; /* since the last of them */
	uint64_t n, bytes;
	uint64_t n_recorded;  /* ever */
	unsigned n_recording; /* out of the queue, still held */
	bool stop;
};

/* A recorded version made pointless: its NVMe copy goes when D has passed. */
struct dead {
	STAILQ_ENTRY(dead) next;
	uint64_t version, seq;
};

/* ---- open inodes ------------------------------------------------------ */

struct handle {
	LIST_ENTRY(handle) next;
	uint64_t fh;
	bool flushed; /* writable: FLUSH was seen, the probe speaks for it */
};

/* What a backing file looked like. */
struct look {
	bool valid;
	uint64_t size;
	struct timespec ctime;
};

/* An inode that is open, being written, or marked. */
struct inode {
	LIST_ENTRY(inode) by_ino;   /* inodes.lock */
	TAILQ_ENTRY(inode) watched; /* watch.lock: being written */
	TAILQ_ENTRY(inode) marked;  /* marks.lock */
	uint64_t ino;               /* immutable */
	unsigned refs;              /* inodes.lock */
	bool in_watch;              /* watch.lock */
	bool in_marks, in_run;      /* marks.lock */
	bool mark_eager;            /* marks.lock: counted in n_eager */
	int64_t marked_ns;          /* marks.lock: monotonic */
	uint64_t mark_no;           /* written under both locks: the place */
	struct mutex lock;          /* the rest */
	LIST_HEAD(, handle) handles;
	unsigned n_handles, n_writers, n_unflushed;
	struct backing *backing;
	int ro_fd, rw_fd; /* rw_fd: served only */
	int32_t backing_id;
	bool served;  /* io mode, until the last handle is gone */
	bool written; /* unsealed, or a writer is left */
	bool rdwr;    /* O_RDWR since the last final seal: may be mapped */
	_Atomic bool
		orphan; /* nlink 0: the record goes with the last reference */
	uint64_t next_version;
	struct look sealed; /* at the last seal */
	struct look mark;   /* at the last mark */
	int64_t snapshot_ns;
	struct fetch *fetch;
	int error;           /* told once by fsync or close */
	uint64_t lease_size; /* size at the last look of the leaser */
	bool lease_lags;     /* ... which wants more of it allocated */
	uint64_t nvme_room;  /* bytes preallocated for next_version */
	bool streamed;       /* next_version's file may hold something */
	unsigned n_borrowed; /* writable descriptors given out */
};

struct waiter {
	STAILQ_ENTRY(waiter) next;
	uint64_t seq;
	enum level level;
	int64_t until_ns;   /* -ETIMEDOUT then */
	int64_t patient_ns; /* no error before this is told: D stood still
			       already when it came, and is tried anew */
	done_fn *done;
	void *arg;
};

struct rate {
	uint64_t bytes;          /* at the last sample; the settler's */
	_Atomic uint64_t lately; /* bytes per second */
};

struct dropped {
	uint64_t version;
};

#define N_THREADS 9

struct engine {
	struct engine_config config;
	char nvme_dir[256];
	int lock_fd;
	struct meta *meta;
	struct meta_opened opened;
	uint64_t opened_seq; /* D then */
	struct dram_place place;
	struct reserve *reserve;
	struct tier *dram, *nvme;
	struct throttle *throttle;
	struct remote *remote;
	struct publisher *publisher;
	struct fetcher *fetcher;
	struct tensor_room *tensors;
	struct chunk_cache *chunks;
	struct backing_hooks hooks;
	bool passthrough;
	char io_note[200];
	bool mgtime; /* the kernel's ctime is fine-grained */

	struct {
		struct mutex lock;
		LIST_HEAD(, inode) by_ino[N_BUCKETS];
		uint64_t n, next_fh;
	} inodes;
	struct {
		struct mutex lock;
		pthread_cond_t settled; /* settling fell */
		pthread_cond_t added;
		TAILQ_HEAD(, inode) list;
		unsigned n, settling;
		unsigned n_eager;     /* of both: somebody may write on */
		uint64_t last_no;     /* places given: they go to the tail */
		uint64_t settling_no; /* the first that is being settled */
		int error;            /* why the first one cannot be settled */
		bool stop;
		bool asleep;              /* the settler: it must be woken */
		_Atomic unsigned pending; /* n + settling, for the fast path */
	} marks;
	struct {
		struct mutex lock;
		pthread_cond_t added;
		TAILQ_HEAD(, inode) list;
		bool stop;
		bool asleep; /* the leaser: it must be woken */
		pthread_cond_t lags;
		bool lag; /* there is something for the allocator */
	} watch;
	struct backings backings;
	struct ahead ahead;
	struct versions versions;
	struct streams streams;

	/* The door guards these: versions the open transaction drops. */
	struct dropped *drops;
	size_t n_drops, cap_drops;
	uint64_t orphaned; /* the inode it makes an orphan, or 0 */

	struct {
		struct mutex lock;
		pthread_cond_t kick;
		pthread_cond_t timed; /* a waiter came, or stop */
		STAILQ_HEAD(, waiter) waiters;
		STAILQ_HEAD(, dead) dead;
		bool hurry, stop;
		int error; /* why D stands still, 0 if it does not */
		char error_text[200];
	} follow;

	_Atomic uint64_t flushed_bytes, n_spilled, n_fetched;
	_Atomic uint64_t sealed_bytes; /* ever, as flushed_bytes is */
	_Atomic uint64_t n_open;       /* inodes with a handle */
	_Atomic int64_t room_checked_ns;
	_Atomic uint64_t nvme_avail;
	_Atomic uint64_t n_unsealed;
	_Atomic bool no_room; /* some of them was closed, and refused */
	struct rate rates[3]; /* by level: what moved to it */

	pthread_t threads[N_THREADS];
	unsigned n_threads; /* started */
};

/* engine.c */
int64_t now_mono_ns(void);
int64_t now_wall_ns(void);
void cond_wait_ns(pthread_cond_t *c, struct mutex *m, int64_t ns);

/* backing.c */
void backings_init(struct backings *bs);
void backings_fini(struct backings *bs);
struct tier *backing_tier(struct engine *e, enum backing_where where);
/* Makes the file, registers it with one reference. charge: DRAM bytes, which
 * were taken from the reserve before. */
MUST_CHECK int backing_create(struct engine *e, enum backing_where where,
			      uint64_t charge, int flags, struct backing **out,
			      int *fd);
/* One for a file that is there; found or made, with a reference. */
struct backing *backing_adopt(struct engine *e, uint64_t id,
			      enum backing_where where, uint64_t version,
			      uint64_t charge);
/* With a reference, or NULL. */
struct backing *backing_of_version(struct engine *e, uint64_t version);
void backing_get(struct engine *e, struct backing *b);
/* The last one deletes the file, unless its version is recorded. */
void backing_put(struct engine *e, struct backing *b);
/* From now on b holds this version (0: unsealed content). */
void backing_set_version(struct engine *e, struct backing *b, uint64_t v);
/* The version has a recorded copy: its DRAM file may stay as a cache; its
 * NVMe file, if it is that copy (file; 0: there is none), is not ours. */
void backing_recorded(struct engine *e, uint64_t version, uint64_t file);
/* Nobody needs what b caches for this version. */
void backing_version_gone(struct engine *e, uint64_t version);
/* What it held at `turns` it still holds, or held until it was closed. */
uint64_t backing_turns(struct engine *e, struct backing *b);
/* Deletes the small files that nobody needs any more; false: there are none. */
bool backings_tidy(struct engine *e);
void backing_set_charge(struct engine *e, struct backing *b, uint64_t bytes);
/* As charged already; the promise sinks by what `bytes` is more than that. */
void backing_take_promised(struct engine *e, struct backing *b, uint64_t bytes);
/* What is left of the promise is free for others. */
void backing_drop_promise(struct engine *e, struct backing *b);
/* Takes len from the reserve, evicting what is cached if it must. */
MUST_CHECK int dram_take(struct engine *e, uint64_t len);
/* The same, as a promise. */
MUST_CHECK int dram_promise(struct engine *e, uint64_t len);
MUST_CHECK int dram_evict(struct engine *e, uint64_t len);
/* Evicts the DRAM copy of one version if nobody uses it; bytes freed. */
uint64_t dram_evict_version(struct engine *e, uint64_t version);

/* ahead.c */
void ahead_init(struct ahead *a);
/* An empty file on DRAM, with a descriptor; it is the caller's to register.
 * false: none is ready. */
bool ahead_take(struct engine *e, int flags, uint64_t *id, int *fd);
/* Only in the settler. */
void ahead_make(struct engine *e);
void ahead_drop(struct engine *e);

/* version.c */
void versions_init(struct versions *vs);
void versions_fini(struct engine *e);
/* The first len bytes; zeros where the file is shorter. */
MUST_CHECK int content_load(int fd, void *buf, size_t len);
struct version *version_find_locked(struct versions *vs, uint64_t id)
	MUST_HOLD(vs->lock);
/* Under the door, before the commit that seals it. v->seq is set. */
void version_insert(struct engine *e, struct version *v);
/* One that was inserted as `logging` has its commit. */
void version_logged(struct engine *e, uint64_t id);
/* Under the door too, before that: v is sealed after the unrecorded snapshot
 * `base` of the same inode, and size and ctime have not moved since. */
void version_begin_from(struct engine *e, struct version *v, uint64_t base);
/* The commit failed, or start-up changed its mind. */
void version_discard(struct engine *e, uint64_t id);
/* After the commit: version was replaced or unlinked at seq. */
void version_dead(struct engine *e, uint64_t id, uint64_t seq);
/* After a commit of that many bytes, before any version_dead() of it: what
 * waits for the follower is cut into targets of bounded size. */
void version_bound(struct engine *e, size_t len);
/* DRAM has no room: waits until more of it can be evicted. false: nothing is
 * on its way to NVMe that would make room. */
bool version_wait_recorded(struct engine *e);
/* The follower's next target, pinned; D if there is none. */
uint64_t version_next_target(struct engine *e);
/* The target and those chosen for later cannot be reached: the newest number
 * in their place. What only they needed is dropped. */
uint64_t version_give_up(struct engine *e);
/* Its file on NVMe, though the durable database does not know it yet. No
 * checksums. -ENOENT: there is none, or it is recorded. */
MUST_CHECK int version_flushed(struct engine *e, uint64_t id,
			       struct copy_rec *out);
/* What failed is tried again at once: somebody waits for it. */
void version_retry_failed(struct engine *e);
void version_hold_locked(struct version *v);
void version_unhold(struct engine *e, struct version *v);
/* A snapshot whose writers are gone without a change: may be mapped. */
void version_confirm(struct engine *e, uint64_t id);
/* The follower has recorded it: leaves the table. */
void version_recorded(struct engine *e, struct version *v);
struct version *version_new(uint64_t id, uint64_t ino, uint64_t size);
/* Content of a small version, from its capture or its backing file. */
MUST_CHECK int version_load_small(struct engine *e, struct version *v,
				  void **out);
/*
 * The content of sealed version id is about to change in its backing file b:
 * see that it has a copy of its own. -EAGAIN: its flush must be waited for
 * with version_wait_flushed(), holding no lock.
 */
MUST_CHECK int version_preserve(struct engine *e, uint64_t id,
				struct backing *b);
/* Nothing was written to b after all: it is id's file again, as id's record
 * has said all the time. b is the inode's, whose lock is held. */
void version_take_back(struct engine *e, uint64_t id, struct backing *b);
MUST_CHECK int version_wait_flushed(struct engine *e, uint64_t id);
/* Bytes of an unrecorded version for a new backing file; -ENOENT: none. */
MUST_CHECK int version_small(struct engine *e, uint64_t id, void **out,
			     size_t *len);
MUST_CHECK int version_crcs(struct engine *e, uint64_t id, uint64_t size,
			    uint32_t **out);
void *flusher_main(void *arg);

/* inode.c */
struct inode *inode_find(struct engine *e, uint64_t ino); /* + reference */
MUST_CHECK int inode_get(struct engine *e, uint64_t ino, bool *fresh,
			 struct inode **out);
void inode_put(struct engine *e, struct inode *in);
/* Taken before anything is changed, for nothing may fail after that. */
MUST_CHECK int handle_new(struct handle **out);
/* Takes h over, and gives it its number. */
void handle_add_locked(struct engine *e, struct inode *in, int flags,
		       struct handle *h) MUST_HOLD(in->lock);
struct handle *handle_find_locked(struct inode *in, uint64_t fh)
	MUST_HOLD(in->lock);
bool fh_writable(uint64_t fh);
void inode_detach_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
MUST_CHECK int inode_use_backing_locked(struct engine *e, struct inode *in,
					struct backing *b) MUST_HOLD(in->lock);
void watch_add(struct engine *e, struct inode *in);
void watch_remove(struct engine *e, struct inode *in);
/* Under the door: is it in use, so that its record must outlive its last
 * name? If so it is noted, and the record goes with the last reference. */
bool inode_set_orphan(struct engine *e, uint64_t ino, bool orphan);

/* transaction.c */
/* One commit, and what follows from it. */
MUST_CHECK int commit_and_drop(struct engine *e, struct txn *t, uint64_t *seq);
/* In the open transaction: the version goes. */
void drop_version(struct engine *e, struct txn *t, uint64_t version);

/* file_io.c */
MUST_CHECK int inode_truncate_locked(struct engine *e, struct inode *in,
				     uint64_t size) MUST_HOLD(in->lock);
/* Of the backing file. */
void inode_set_times_locked(struct inode *in, const struct timespec ts[2])
	MUST_HOLD(in->lock);

/* room.c */
/* A fresh backing file for a file of which `want` bytes are known; *fd is of
 * it, opened with flags. -ENOSPC: neither tier has room. */
MUST_CHECK int choose_backing(struct engine *e, uint64_t want, int flags,
			      struct backing **out, int *fd);
/* The same for a new file that will be `expected` bytes long (0: unknown). */
MUST_CHECK int choose_for_new(struct engine *e, uint64_t expected, int flags,
			      struct backing **out, int *fd);
MUST_CHECK int nvme_has_room(struct engine *e, uint64_t want);

/* attach.c */
/* The inode has no content at hand: find its sealed version's, or begin to
 * fetch it. -EIO: no tier has it. */
MUST_CHECK int attach_locked(struct engine *e, struct inode *in,
			     const struct inode_rec *rec) MUST_HOLD(in->lock);
/* A fetched file that is to be written: as an NVMe copy. -EAGAIN: not all of
 * it has arrived. */
MUST_CHECK int finish_fetch_locked(struct engine *e, struct inode *in,
				   const struct inode_rec *rec)
	MUST_HOLD(in->lock);

/* open.c */
void inode_begin_write_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
MUST_CHECK int inode_log_unsealed_locked(struct engine *e, struct inode *in,
					 uint64_t base) MUST_HOLD(in->lock);

/* settle.c */
void mark_add(struct engine *e, struct inode *in);
/* Marks every file that is unsealed though it was closed, and settles: a
 * mapping that lives on is asked by the probe. */
void settle_written(struct engine *e);
/* settle(), also of what NVMe had no room for. -ENOSPC: it has none still. */
MUST_CHECK int settle_all(struct engine *e);
/* -errno: a seal failed; its mark, and those behind it, wait. */
int settle(struct engine *e);
/* For an event that need not wait for marks, in general. */
int settle_if_needed(struct engine *e);
void *settler_main(void *arg);

/* seal.c */
/* A seal on its way; in->lock is held from begin to finish. */
struct seal {
	struct inode *in;
	enum { SEAL_NOTHING, SEAL_VERSION, SEAL_CONFIRM } what;
	bool final;
	bool no_room; /* on NVMe: it stays as it is, being written */
	int err;
	struct stat st;    /* SEAL_VERSION: the content that is sealed */
	struct version *v; /* until it is in the table */
	uint64_t id;       /* its id */
	uint64_t before;   /* the version that its backing file held */
};
void seal_begin_locked(struct engine *e, struct inode *in, bool final,
		       struct seal *s) MUST_HOLD(in->lock);
/* One commit for all, in this order; each has its own err. From the first one
 * on that failed, none is sealed. */
void seals_log(struct engine *e, struct seal *seals, unsigned n);
MUST_CHECK int seal_finish_locked(struct engine *e, struct inode *in,
				  const struct seal *s) MUST_HOLD(in->lock);
/* Is it to be tried again? -ENOENT: unlinked while we looked, so there is
 * nothing to seal. */
bool seal_failed(int err);
/* Nobody can write the file any more: its last seal. */
MUST_CHECK int seal_final_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
/* What the file holds now becomes a version, if it changed. */
MUST_CHECK int seal_snapshot_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
MUST_CHECK int look_at(struct inode *in, struct look *out);
bool look_same(const struct look *a, const struct look *b);
bool writer_left_locked(struct engine *e, struct inode *in) MUST_HOLD(in->lock);
/* Every handle was closed or flushed: what it holds is a version, now. */
MUST_CHECK int settle_closed_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
uint64_t content_blocks(int fd, const struct stat *st);

/* Up to max of the watched inodes, each with a reference; in turn, if there are
 * more. */
unsigned watch_take(struct engine *e, struct inode **batch, unsigned max);

/* lease.c */
void *leaser_main(void *arg);
void *allocator_main(void *arg);
/* Room on NVMe for what was accepted, or -ENOSPC to whoever closes. */
MUST_CHECK int lease_nvme_locked(struct engine *e, struct inode *in,
				 uint64_t size) MUST_HOLD(in->lock);
/* DRAM is short: what files that do not grow are charged ahead, but do not
 * hold, is taken back. false: there is none. Locks inodes. */
bool leases_reclaim(struct engine *e);
/* No version needs the file that was set aside on NVMe. */
void lease_drop_nvme_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
MUST_CHECK int lease_exact_locked(struct engine *e, struct inode *in,
				  uint64_t size) MUST_HOLD(in->lock);
/* Nobody can write the file: what it holds beyond its content is given back. */
void lease_trim_locked(struct engine *e, struct inode *in) MUST_HOLD(in->lock);

/* watermark.c */
void *follower_main(void *arg);
void follow_kick(struct engine *e, bool hurry);
void follow_dead(struct engine *e, uint64_t version, uint64_t seq);
/* Why D stands still, 0 if it does not. */
MUST_CHECK int follow_error(struct engine *e);

/* waiters.c */
/* Tells those who wait for what has been reached. */
void follow_tell_reached(struct engine *e);
/* D stands still: the others too, but who may still hope. -ESHUTDOWN: all. */
void follow_fail_waiters(struct engine *e, int err);
void *timer_main(void *arg);

/* state.c */
/* What moved since the last call, `ns` ago. The settler's. */
void rates_sample(struct engine *e, int64_t ns);

/* recover.c */
MUST_CHECK int recover_tiers(struct engine *e);

#endif
