/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a mount: one ordered log of events, kept in two RocksDB
 * databases (DESIGN.md section 5).
 *
 *   accepted  in DRAM (a small tmpfs): the namespace as the job sees it, and
 *             the log of the transactions above the nvme watermark D.
 *   durable   on NVMe: the namespace as of D, the events R..D that the
 *             publisher still has to replay, and, never rolled back, where
 *             each version's copies are and the contents of small versions.
 *
 * Every change is one transaction through one door: txn_begin() takes the
 * door, txn_commit() writes one batch with the next sequence number and gives
 * the door back. Whoever reads records in order to change them does so between
 * the two. Reads see committed state only, never the open transaction's own
 * writes, and need no lock.
 *
 * Numbers: sequence numbers, inode numbers and version ids are epoch << 40 |
 * counter; the epoch is raised and synced at every meta_open(), so none is
 * ever used twice. All are > 2 except the root's inode number, 1.
 *
 * Errors: 0 or -errno. RocksDB's strings are logged here and become -EIO
 * (-ENOSPC when the disk is full, -EBADMSG for a checksum, -EUCLEAN for a
 * record that cannot be, -EOPNOTSUPP for a newer format). -ENOENT: no record.
 * Threads: any, unless it says otherwise. Times are ns since 1970.
 */
#ifndef CKPT_METADATA_METADATA_H
#define CKPT_METADATA_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "metadata/compiler.h"

#define META_ROOT_INO UINT64_C(1)
#define META_NAME_MAX 255
#define META_PATH_MAX 4096
#define META_SMALL_MAX (64 * 1024) /* contents this short live in `small` */

struct meta;
struct txn;

/* ---- records ---------------------------------------------------------- */

struct inode_rec {
	uint64_t ino;
	uint32_t mode; /* type and permissions, as st_mode */
	uint32_t uid, gid, nlink;
	uint64_t rdev;
	uint64_t size;   /* of the sealed version; of a symlink's target */
	uint64_t blocks; /* 512 bytes each, of the sealed version */
	int64_t atime_ns, mtime_ns, ctime_ns;
	uint64_t version; /* sealed version, 0: never sealed (or no file) */
	uint64_t parent;  /* directories: the parent's inode number */
	uint64_t seq;     /* last transaction that put this record: set by
			     txn_put_inode(), callers need not */
};

/*
 * Times of records reach from 1677 to 2262: what lies outside becomes the
 * nearest of them, and comes back as such. tv_nsec >= 0, before 1970 too.
 */
int64_t ns_of_timespec(struct timespec ts);
struct timespec timespec_of_ns(int64_t ns);

struct dentry_rec {
	uint64_t ino;
	uint64_t cookie; /* its place in listings: > 2, fits an off_t. A new
			    one is above all others (txn_put_dentry()) */
	uint32_t type;   /* mode & S_IFMT */
};

struct version_rec {
	uint64_t id;
	uint64_t ino;
	uint64_t size;
	uint64_t blocks;
	uint64_t backing; /* id of the backing file that held it at the seal */
	uint32_t where;   /* enum backing_where of that file */
	uint32_t flags;   /* VERSION_* */
	uint64_t seq;     /* sealed at; set by txn_put_version() */
};

#define VERSION_SNAPSHOT 1u /* sealed while a writer was left */

enum backing_where { BACKING_DRAM = 0, BACKING_NVME = 1 };

/* Accepted state only: an inode whose content may differ from its version. */
struct unsealed_rec {
	uint64_t ino;
	uint64_t backing; /* file with the content being written */
	uint32_t where;   /* enum backing_where */
	uint64_t base;    /* sealed version it began from or replaces, or 0 */
};

/* Where a version's bytes are on a slower tier. Durable, never rolled back. */
enum copy_tier { COPY_NVME = 1, COPY_REMOTE = 2 };
enum copy_kind { COPY_FILE = 1, COPY_SMALL = 2, COPY_OBJECT = 3 };

struct copy_rec {
	uint64_t version;
	enum copy_tier tier;
	enum copy_kind kind;
	uint64_t file;   /* COPY_FILE: id of the backing file on NVMe */
	char object[64]; /* COPY_OBJECT: what tells it on the remote (a
			    version's identity, or FORMAT.md), NUL-ended */
	uint64_t size;
	uint32_t chunk_len; /* bytes a checksum covers (last chunk shorter) */
	uint32_t n_chunks;
	uint32_t *crcs; /* CRC32C each; owned by the record */
	bool verified;  /* false: no checksums are known (foreign object) */
};

/* Releases what c owns, not c. */
void copy_rec_fini(struct copy_rec *c);

/* ---- events: what the publisher replays ------------------------------- */

enum event_kind {
	EVENT_NONE = 0, /* nothing a remote would show */
	EVENT_SEAL,     /* version of ino is the content of all paths */
	EVENT_MKDIR,
	EVENT_SYMLINK, /* value: the target */
	EVENT_LINK,    /* path2 is a new name of ino, whose content is version
			  (0: not sealed yet) */
	EVENT_UNLINK,  /* path (ino's) went; also rmdir */
	EVENT_RENAME,  /* path became path2; what path2 named is gone */
	EVENT_EXCHANGE,
	EVENT_SETATTR, /* rec has the new mode, owner, times; all paths */
	EVENT_SETXATTR,
	EVENT_REMOVEXATTR,
};

struct event {
	uint64_t seq;     /* set by the log */
	int64_t stamp_ns; /* wall clock; set by txn_event() */
	enum event_kind kind;
	uint64_t version; /* SEAL, LINK, RENAME: content of ino, 0 if none */
	struct inode_rec rec;     /* of ino, as of this event */
	const char *const *paths; /* '/'-separated, relative to the root of the
				     mount, "" is the root; NUL-ended. SEAL,
				     SETATTR, XATTR: all names of ino; others:
				     one. A file without a name (orphan): 0 */
	size_t n_paths;
	const char *path2; /* LINK, RENAME, EXCHANGE, else NULL */
	const char *name;  /* XATTR: its name */
	const void *value; /* SETXATTR, SYMLINK, SEAL */
	size_t value_len;
};

/* ---- opening ---------------------------------------------------------- */

struct meta_config {
	const char *accepted_dir; /* exists; empty, or left by a daemon that
				     died on this boot */
	const char *durable_dir;  /* exists; empty: a new mount */
	bool keep_events;         /* there is a remote: store events */
	uint64_t reserve_len;     /* bytes to preallocate beside the durable
				     database against ENOSPC; 0: none */
};

enum meta_start {
	META_FRESH,      /* there was no durable database */
	META_CARRIED_ON, /* both databases agree: a daemon restart */
	META_POWER_CUT,  /* accepted state lost; this is the durable one */
};

struct meta_opened {
	enum meta_start start;
	uint64_t n_dropped; /* names without a sealed version, dropped */
	bool events_lost;   /* keep_events, but between R and D some were not
				kept: the publisher compares trees instead, and
				is done with meta_set_remote_seq(D) */
	char reason[160];   /* for the log: why it was not carried on, or "" */
};

/*
 * Opens or makes both databases, recovers, raises and syncs the epoch.
 * The caller holds the mount's lock file; nobody else may have them open.
 *
 *   -EOPNOTSUPP  written by a newer ckptfs
 *   -EUCLEAN     a record that cannot be; run fsck
 *   -ESTALE      the durable state is older than the accepted one's log goes
 *                back: the disk lost what it had synced. Nothing was touched
 */
MUST_CHECK int meta_open(const struct meta_config *config,
			 struct meta_opened *opened, struct meta **out);
/* Closes; the accepted database stays where it is. NULL is allowed. */
void meta_close(struct meta *m);

/* 16 bytes, made with the durable database; names this mount's state. */
const uint8_t *meta_uuid(const struct meta *m);
uint64_t meta_epoch(const struct meta *m);
uint64_t meta_new_ino(struct meta *m);
uint64_t meta_new_version(struct meta *m); /* also ids of backing files */

/* ---- the door --------------------------------------------------------- */

/* Takes the door; exactly one of commit and abort follows, same thread. */
struct txn *txn_begin(struct meta *m);
/*
 * Gives the door back. *seq is this transaction's (last) number; one without
 * records takes no number and reports the last one given. An error (also a
 * lack of memory met by any txn_ call before) leaves everything as it was.
 *
 *   -ENOSPC  the accepted database's room is used up (only transactions with
 *            txn_frees() are let through)
 */
MUST_CHECK int txn_commit(struct txn *t, uint64_t *seq);
void txn_abort(struct txn *t);
/* The number that what is put now will get. */
uint64_t txn_seq(const struct txn *t);
/*
 * Several events in one commit, each with its number and log entry: ends this
 * number and begins the next. An error met since this one began is returned,
 * and has undone what was put since then; the numbers before it stay.
 */
MUST_CHECK int txn_next(struct txn *t);
/* Forgets what was put since this number began, and its errors. */
void txn_undo(struct txn *t);
/* Bytes for the log so far, about. */
size_t txn_len(const struct txn *t);
/* This transaction makes room (unlink, rmdir): let it through when full. */
void txn_frees(struct txn *t);
/* Its commit fails with err, unless it makes room. */
void txn_refuse(struct txn *t, int err);
/* At most one event a number; copied. Paths as they were: see there. */
void txn_event(struct txn *t, const struct event *ev);
/* false: no remote, events are not kept; do not bother to make one. */
bool meta_keeps_events(const struct meta *m);

void txn_put_inode(struct txn *t, const struct inode_rec *rec);
/* Also its xattrs and symlink target. Not its version, not its names. rec: as
 * the accepted state has it. */
void txn_del_inode(struct txn *t, const struct inode_rec *rec);
/*
 * Name, readdir cookie, and the way back from ino to (parent, name). What the
 * name stood for before must be taken away first, by txn_del_dentry(). At
 * most 8 a transaction.
 */
void txn_put_dentry(struct txn *t, uint64_t parent, const char *name,
		    uint64_t ino, uint32_t type);
/* The same at a place in the parent's listing that this transaction has taken
 * an entry away from: d is all of the new one, its cookie that entry's. */
void txn_put_dentry_at(struct txn *t, uint64_t parent, const char *name,
		       const struct dentry_rec *d);
void txn_del_dentry(struct txn *t, uint64_t parent, const char *name,
		    const struct dentry_rec *d);
void txn_put_version(struct txn *t, const struct version_rec *v);
void txn_del_version(struct txn *t, uint64_t version);
void txn_put_xattr(struct txn *t, uint64_t ino, const char *name,
		   const void *value, size_t len);
void txn_del_xattr(struct txn *t, uint64_t ino, const char *name);
void txn_put_symlink(struct txn *t, uint64_t ino, const char *target);
void txn_put_orphan(struct txn *t, uint64_t ino);
void txn_del_orphan(struct txn *t, uint64_t ino);
/* Accepted state only, not in the log. */
void txn_put_unsealed(struct txn *t, const struct unsealed_rec *u);
void txn_del_unsealed(struct txn *t, uint64_t ino);

/* ---- reading ---------------------------------------------------------- */

/*
 * A state to read. The accepted one is always there; a durable one is a
 * snapshot, consistent with the watermark it was taken at. Callbacks hold no
 * lock; of the accepted state they may see each batch of entries at a later
 * moment. -ESTALE: the durable database had to be reopened and this view's
 * state is gone; take a new one.
 */
struct view;
const struct view *meta_accepted(const struct meta *m);
MUST_CHECK int meta_durable_view(struct meta *m, struct view **out);
void view_free(struct view *v);          /* durable views only; NULL allowed */
uint64_t view_seq(const struct view *v); /* durable view: its D */

MUST_CHECK int view_inode(const struct view *v, uint64_t ino,
			  struct inode_rec *out);
MUST_CHECK int view_lookup(const struct view *v, uint64_t parent,
			   const char *name, struct dentry_rec *out);
MUST_CHECK int view_version(const struct view *v, uint64_t version,
			    struct version_rec *out);
/*
 * Entries of dir with cookie > after, in cookie order, until the callback
 * returns non-zero, which is then returned. `.` and `..` are not among them.
 */
typedef int dentry_fn(void *arg, const char *name, const struct dentry_rec *d);
MUST_CHECK int view_readdir(const struct view *v, uint64_t dir, uint64_t after,
			    dentry_fn *fn, void *arg);
/* No entry that the accepted state has now has a cookie above it; those that
 * are made later have. */
uint64_t meta_last_cookie(const struct meta *m);
MUST_CHECK int view_dir_is_empty(const struct view *v, uint64_t dir, bool *out);
/* *len: in the room at buf, out the value's length. -ERANGE: too short;
 * *len is set to what is needed. buf NULL: length only. -ENODATA: none. */
MUST_CHECK int view_xattr(const struct view *v, uint64_t ino, const char *name,
			  void *buf, size_t *len);
typedef int xattr_fn(void *arg, const char *name, const void *value,
		     size_t len);
MUST_CHECK int view_xattrs(const struct view *v, uint64_t ino, xattr_fn *fn,
			   void *arg);
/* buf takes META_PATH_MAX bytes. */
MUST_CHECK int view_symlink(const struct view *v, uint64_t ino, char *buf);
/* All names of ino: (parent, name). */
typedef int name_fn(void *arg, uint64_t parent, const char *name);
MUST_CHECK int view_names(const struct view *v, uint64_t ino, name_fn *fn,
			  void *arg);
/*
 * One path of ino, relative to the root, "" for the root itself; buf takes
 * META_PATH_MAX bytes. -ENOENT: it has no name. -ENAMETOOLONG. Cached for
 * directories (the cache lives until a directory is renamed or removed), so
 * that it costs no look-up in the common case.
 */
MUST_CHECK int view_path(const struct view *v, uint64_t ino, char *buf);
/*
 * The largest number at which a part of the path of ino was put there: ino's
 * own name, or a directory on the way down to it; of several names, whichever.
 * 0: the root, or it has no name. From that number on it is found where it is
 * found now.
 */
MUST_CHECK int view_path_seq(const struct view *v, uint64_t ino, uint64_t *seq);
/* parent's path + '/' + name */
MUST_CHECK int view_child_path(const struct view *v, uint64_t parent,
			       const char *name, char *buf);
/* Every version and every unsealed or orphan inode, for start-up and sweeps. */
typedef int version_fn(void *arg, const struct version_rec *v);
MUST_CHECK int view_versions(const struct view *v, version_fn *fn, void *arg);
typedef int unsealed_fn(void *arg, const struct unsealed_rec *u);
MUST_CHECK int meta_unsealed(const struct meta *m, unsealed_fn *fn, void *arg);
typedef int ino_fn(void *arg, uint64_t ino);
MUST_CHECK int meta_orphans(const struct meta *m, ino_fn *fn, void *arg);

/* ---- copies and small contents (durable, never rolled back) ----------- */

/* *out is filled; copy_rec_fini() it. */
MUST_CHECK int meta_copy(const struct meta *m, uint64_t version,
			 enum copy_tier tier, struct copy_rec *out);
typedef int copy_fn(void *arg, const struct copy_rec *c);
MUST_CHECK int meta_copies(const struct meta *m, copy_fn *fn, void *arg);
/* *out is malloc'ed, *len its length. */
MUST_CHECK int meta_small(const struct meta *m, uint64_t version, void **out,
			  size_t *len);
/* Outside of a target: a copy found or made later (remote, promoted). */
MUST_CHECK int meta_put_copy(struct meta *m, const struct copy_rec *c,
			     bool sync);
/* Forget copies (and small contents) of n versions, in one write; unsynced is
 * enough: a forgotten deletion is found again by the sweep at start-up. */
MUST_CHECK int meta_del_copies(struct meta *m, const uint64_t *versions,
			       size_t n);
MUST_CHECK int meta_del_copy(struct meta *m, uint64_t version,
			     enum copy_tier tier);

/* ---- tensors (accepted, a cache: losing one is harmless) -------------- */

#define META_TENSORS_MAX ((size_t)1 << 20) /* longer records are not kept */

/*
 * What was found in a version, in the bytes of whoever found it. Goes with its
 * version; not in the log.
 *
 *   -ENOENT  no such version (any more)
 *   -EFBIG   longer than META_TENSORS_MAX
 *   -ENOSPC  the accepted database's room is for other things: half of it must
 *            be free
 */
MUST_CHECK int meta_put_tensors(struct meta *m, uint64_t version,
				const void *record, size_t len);
/* *out is malloc'ed, *len its length; both NULL: only ask. -ENOENT: none is
 * kept. */
MUST_CHECK int meta_tensors(const struct meta *m, uint64_t version, void **out,
			    size_t *len);

/* ---- the log and the watermarks --------------------------------------- */

uint64_t meta_accepted_seq(const struct meta *m); /* last number given out */
uint64_t meta_nvme_seq(const struct meta *m);     /* D */
uint64_t meta_remote_seq(const struct meta *m);   /* R; D if no remote */

/*
 * false: NVMe is so full that the reserve had to be released, and there is no
 * room to take it again. Accept no new data until it is true; meta_advance()
 * goes on while what is left of that room lasts, because only D passing an
 * unlink makes room. A statvfs(3) while it is not held.
 */
bool meta_reserve_hold(struct meta *m);
/*
 * Of the accepted state: stays the same as long as that lives (over deaths of
 * the daemon, too). When it is made anew, from the durable one, it is another
 * one. Never 0.
 */
uint32_t meta_lineage(const struct meta *m);
/* Is it held? Does nothing about it. */
bool meta_reserve_held(const struct meta *m);

struct small_content {
	uint64_t version;
	const void *data; /* borrowed */
	size_t len;
};

/*
 * The largest number n, D < n <= want, such that the logged batches (D, n]
 * are at most max_bytes long (at least one). want itself if all fit; D if
 * want is not above it. A want above the accepted number counts as that.
 */
MUST_CHECK int meta_log_bound(struct meta *m, uint64_t want, size_t max_bytes,
			      uint64_t *n);
/*
 * Advances D to target in one synced batch: the logged batches (D, target],
 * their events, the copies, the small contents. Then trims the accepted log.
 * One thread only (the follower). On error D stands where it stood; the
 * database may have been reopened inside.
 *
 *   -EINVAL  target is not in (D, accepted]
 *   -ENOSPC  NVMe is full; try again when there is room
 */
MUST_CHECK int meta_advance(struct meta *m, uint64_t target,
			    const struct copy_rec *copies, size_t n_copies,
			    const struct small_content *smalls,
			    size_t n_smalls);
/* No target for a while: the memory that meta_advance() kept for the next one
 * is given back. */
void meta_rest(struct meta *m);

/*
 * Events (after, D] in order, until the callback returns non-zero, which is
 * then returned. The event is borrowed for the call.
 */
typedef int event_fn(void *arg, const struct event *ev);
MUST_CHECK int meta_events(const struct meta *m, uint64_t after, event_fn *fn,
			   void *arg);
/* The xattrs that ino has in v, malloc'ed, as the value of a SEAL. */
MUST_CHECK int event_xattrs_encode(const struct view *v, uint64_t ino,
				   void **value, size_t *len);
/*
 * Those of ev, a SEAL: what its object had then, whatever became of them.
 *
 *   -ENODATA  it does not say: it was logged by an older ckptfs
 */
MUST_CHECK int event_xattrs(const struct event *ev, xattr_fn *fn, void *arg);
/* R := seq, forgetting the events up to it; sync: fdatasync before return. */
MUST_CHECK int meta_set_remote_seq(struct meta *m, uint64_t seq, bool sync);
/* Between R and D are numbers whose events were not kept, because there was no
 * remote then. True from before D passes the first of them. */
bool meta_events_lost(struct meta *m);

/* Small facts that outlive a mount, by name (durable, synced). */
MUST_CHECK int meta_set_note(struct meta *m, const char *key, const void *val,
			     size_t len);
MUST_CHECK int meta_note(const struct meta *m, const char *key, void *val,
			 size_t *len);

/* Bytes both databases take: memory of the process, files in DRAM, on NVMe. */
struct meta_usage {
	uint64_t memory, accepted, durable;
	uint64_t n_inodes; /* an estimate */
};
void meta_usage(const struct meta *m, struct meta_usage *out);

/* Checks every record of the durable state; each finding to fn as a line. */
typedef void finding_fn(void *arg, const char *line);
MUST_CHECK int meta_fsck(struct meta *m, finding_fn *fn, void *arg,
			 uint64_t *n_findings);

#endif
