/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of the movers: what fs/ may ask for. Open files and their seals,
 * namespace transactions, durability, state of the tiers.
 *
 * LOCK ORDER of the whole daemon (take from left to right):
 *   inode.lock → the door (txn_begin … txn_commit) →
 *   watch.lock → inodes.lock | versions.lock → backings.lock |
 *   marks.lock | follow.lock | the reserve's, the publisher's, the fetcher's,
 *   a source's, the tensors', the chunk cache's
 * None of the last two lines is held over I/O. An inode's lock may be held over
 * the probe, over file operations on its backing file and over the door. Whoever
 * holds one takes another only by trying (settle.c).
 *
 * Threads: any. Blocking calls say so. Errors are -errno.
 *
 * A handle is named by (ino, fh). fh says by itself how the file was opened,
 * so that a handle can be rebuilt after the daemon's death.
 */
#ifndef CKPT_ENGINE_ENGINE_H
#define CKPT_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "metadata/metadata.h"

struct engine;

enum level { LEVEL_DRAM, LEVEL_NVME, LEVEL_REMOTE };
const char *level_name(enum level l);
/* -EINVAL: not one of dram, nvme, remote */
MUST_CHECK int level_parse(const char *s, enum level *out);

/* ---- start and stop --------------------------------------------------- */

struct engine_config {
	const char *nvme_dir;   /* all local state; made if missing */
	const char *mountpoint; /* for the lock file and messages */
	uint64_t dram;          /* bytes of the DRAM tier */
	bool reserve;           /* hold them by a ballast */
	uint64_t nvme_size;     /* bytes NVMe may take; 0: the filesystem */
	enum level fsync;       /* what fsync(2) promises */
	uint64_t flush_rate;    /* bytes per second; 0: no limit */
	const char *remote;     /* remote_open() spec or NULL */
	const char *faulty;     /* tier_faulty_open() spec for NVMe or NULL */
	/* Asked while it starts; true: nobody wants it any more. Or NULL. */
	bool (*unwanted)(const void *arg);
	const void *unwanted_arg;
};

/*
 * Checks everything that can be wrong, recovers, starts the threads. On
 * failure nothing is left behind, and why holds one line that names the thing
 * and the remedy. May wait for minutes, for the last mount of the same state.
 *
 *   -EINTR  unwanted
 */
MUST_CHECK int engine_start(const struct engine_config *config, char *why,
			    size_t why_len, struct engine **out);

/*
 * Flushes to NVMe (timeout_s < 0: as long as it takes), then stops the
 * threads and releases everything. If all of it reached NVMe, the DRAM tier
 * is freed, else it is left for the next mount (and the log says where).
 */
void engine_stop(struct engine *e, int timeout_s);

/*
 * Whoever waits for bytes of the remote gets -ESHUTDOWN, now and from now on,
 * also if it hangs. Before engine_stop(), so that no request stands in its way.
 */
void engine_end_fetches(struct engine *e);

/* The databases; the engine's own until engine_stop(). */
struct meta *engine_meta(struct engine *e);

/*
 * How the kernel is told of backing files. Called once, before the first
 * request, if the kernel offers passthrough; else files are served.
 */
struct backing_hooks {
	/* fd is open read-only; *id > 0. May be called in any thread. */
	int (*open)(void *arg, int fd, int32_t *id);
	void (*close)(void *arg, int32_t id);
	void *arg;
};
void engine_use_passthrough(struct engine *e,
			    const struct backing_hooks *hooks);
bool engine_passes_through(const struct engine *e);
/* Why files are served, or that they pass through; for the status. */
void engine_set_io_note(struct engine *e, const char *note);

/* ---- namespace transactions ------------------------------------------- */

/* Settles the marks, then txn_begin(). Events go through here, or below. While a
 * mark cannot be settled only what makes room is let through: the commit of
 * anything else fails with the seal's error. */
struct txn *engine_txn_begin(struct engine *e);
/* For a new regular file, of which nothing is seen elsewhere before its first
 * seal: it does not wait for marks, unless there are many. */
struct txn *engine_txn_begin_create(struct engine *e);
/* txn_commit(), then what follows from it (copies freed, follower told). */
MUST_CHECK int engine_txn_commit(struct engine *e, struct txn *t,
				 uint64_t *seq);
void engine_txn_abort(struct engine *e, struct txn *t);
/*
 * In the open transaction t: one name of rec's inode has gone (the caller
 * removes the dentry). Lowers nlink (directories: to 0); at 0 the inode goes,
 * with its version and xattrs, or becomes an orphan while it is open. rec is
 * updated, with ctime = now_ns.
 */
void engine_drop_link(struct engine *e, struct txn *t, struct inode_rec *rec,
		      int64_t now_ns);

/* ---- open files ------------------------------------------------------- */

struct open_reply {
	uint64_t fh;
	int32_t backing_id; /* > 0: open in passthrough with this id */
	bool direct_io;     /* set FOPEN_DIRECT_IO (served, or O_SYNC) */
};

/*
 * A new file: makes its backing file and the handle, before the transaction
 * that makes its name. flags as open(2). expected: how long it will be, which
 * decides its tier; 0: not known. Then file_log_create() in that transaction;
 * file_cancel() if it did not commit.
 *
 *   -ENOSPC  no room is left on NVMe to promise
 */
MUST_CHECK int file_create(struct engine *e, uint64_t ino, int flags,
			   uint64_t expected, struct open_reply *out);
void file_log_create(struct engine *e, struct txn *t, uint64_t ino);
void file_cancel(struct engine *e, uint64_t ino, uint64_t fh);

/*
 * An existing regular file, also with O_TRUNC (which is done here, with its
 * times and set-id bits). May block: a version that must first have its own
 * copy elsewhere. patient: also until it has come from the remote.
 *
 *   -EINPROGRESS  it has not, and patient is not set: nothing was done
 *   -ESHUTDOWN    it will not: engine_end_fetches()
 *   -ESTALE   the inode is gone
 *   -EBADMSG  promoted from a slower tier, its checksum does not match
 *   -ENOSPC   written: no room
 *   -EIO      its only copy cannot be read
 */
MUST_CHECK int file_open(struct engine *e, uint64_t ino, int flags,
			 bool patient, struct open_reply *out);
/* FLUSH: one descriptor was closed. Returns an error that lost data, once. */
MUST_CHECK int file_flush(struct engine *e, uint64_t ino, uint64_t fh);
/* RELEASE: the handle is gone. */
void file_release(struct engine *e, uint64_t ino, uint64_t fh);

/*
 * A descriptor of the backing file for I/O by the daemon: for reading, once
 * [off, off + len) is there (files being fetched). Give it back with
 * file_return_fd() soon: while a writable one is borrowed, the file counts as
 * being written. patient, -EINPROGRESS, -ESHUTDOWN: as file_open().
 */
MUST_CHECK int file_borrow_read(struct engine *e, uint64_t ino, uint64_t off,
				uint64_t len, bool patient, int *fd);
MUST_CHECK int file_borrow_write(struct engine *e, uint64_t ino, int *fd);
void file_return_fd(struct engine *e, uint64_t ino, bool write, int fd);
/* As fallocate(2). The handle is writable. Size, times: as the kernel does. */
MUST_CHECK int file_fallocate(struct engine *e, uint64_t ino, uint64_t fh,
			      int mode, uint64_t off, uint64_t len);
/* Its writer says that [off, off + len) will not change any more: it may go to
 * NVMe before the seal. Best effort. */
void file_filled(struct engine *e, uint64_t ino, uint64_t off, uint64_t len);
/* Handle opened with O_SYNC or O_DSYNC: each write is followed by an fsync. */
bool file_is_sync(uint64_t fh);
/* Handle opened for writing. */
bool file_is_writable(uint64_t fh);

/* fh 0: by path (truncate(2)). Blocks like file_open(). */
MUST_CHECK int file_truncate(struct engine *e, uint64_t ino, uint64_t fh,
			     uint64_t size, bool patient);
/* Tells the backing file of an inode being written the times a user set
 * (UTIME_OMIT allowed), so that they survive its seal. Else does nothing. */
void file_set_times(struct engine *e, uint64_t ino,
		    const struct timespec ts[2]);
/* Is any file being written, or closed and not sealed yet? */
bool engine_any_written(struct engine *e);
/* Before rename or link of ino: a file being written is snapshot-sealed. */
MUST_CHECK int file_seal_written(struct engine *e, uint64_t ino);

/* The record as stat(2) must show it: size, blocks, mtime and ctime of a
 * file being written come from its backing file. *keeps, if asked for: it
 * does not change but by requests; stores through a mapping of a backing file
 * are none. */
MUST_CHECK int engine_stat(struct engine *e, uint64_t ino,
			   struct inode_rec *out, bool *keeps);
/* FORGET has nothing to do; an orphan goes with its last handle. */

/* Files may not be larger (ext4's limit): -EFBIG. */
#define ENGINE_FILE_MAX ((UINT64_C(16) << 40) - 4096)

/* An open directory: its record outlives rmdir until it is closed. */
MUST_CHECK int opened_dir_hold(struct engine *e, uint64_t ino);
void opened_dir_drop(struct engine *e, uint64_t ino);

/* ---- durability ------------------------------------------------------- */

typedef void done_fn(void *arg, int err);
/*
 * fsync(2) of ino (file or directory): settles, seals what a file being
 * written holds now, and calls done once the newest number has reached
 * `level` (at once, or from another thread). An error that stops the durable
 * state is told at once.
 */
void engine_fsync(struct engine *e, uint64_t ino, enum level level,
		  done_fn *done, void *arg);
enum level engine_fsync_level(const struct engine *e);
/* Settles all marks; the newest number then: what `wait` waits for. -errno: of
 * a seal that failed, and will be tried again. */
MUST_CHECK int engine_seal_all(struct engine *e, uint64_t *seq);
/* The same, but the largest number of what is at or below ino, and of the
 * path that leads there; 0: of all. */
MUST_CHECK int engine_seal_tree(struct engine *e, uint64_t ino, uint64_t *seq);
/* Of the accepted state, as meta_lineage(). */
uint32_t engine_lineage(const struct engine *e);
/* Was what had number seq, when the lineage was that one, lost with it? (If it
 * cannot be told, yes.) */
bool engine_has_lost(const struct engine *e, uint32_t lineage, uint64_t seq);
/* Has seq reached the level? -errno if the way there is blocked by an error. */
MUST_CHECK int engine_reached(struct engine *e, uint64_t seq, enum level level,
			      bool *out);
/* Same, and somebody waits: do not linger. Blocks. -ETIMEDOUT; -EINVAL: there
 * is no such number yet. */
MUST_CHECK int engine_wait(struct engine *e, uint64_t seq, enum level level,
			   int timeout_ms);
/* As engine_wait(), without a thread that waits: done is called once, here or
 * from another thread, with what that returns. -ESHUTDOWN: engine_stop(). */
void engine_when_reached(struct engine *e, uint64_t seq, enum level level,
			 int timeout_ms, done_fn *done, void *arg);
/* Settle, then wait for everything. */
MUST_CHECK int engine_drain(struct engine *e, enum level level, int timeout_ms);

/* ---- state ------------------------------------------------------------ */

struct tier_status {
	char name[16];
	uint64_t used, size;   /* bytes */
	uint64_t rate;         /* bytes per second moved lately */
	uint64_t behind_bytes; /* not there yet */
	int64_t behind_ns;     /* age of the oldest thing not there yet */
	uint64_t seq;          /* watermark */
	char error[200];       /* "": none */
	char note[200];        /* e.g. "io_uring", "reserve: …" */
};

struct engine_status {
	char uuid[33];
	uint64_t epoch;
	char start[200]; /* fresh, carried on, … and why */
	bool passthrough;
	char io_note[200];
	enum level fsync;
	struct tier_status tier[3]; /* dram, nvme, remote (name "": none) */
	uint64_t n_open;            /* regular files with a handle */
	uint64_t n_unsealed; /* of them, and mapped ones: being written */
	uint64_t n_marks;
	uint64_t n_spilled, n_evicted, n_fetched;
	uint64_t fetched_bytes; /* from the remote, also in ranges */
	uint64_t n_unflushed, unflushed_bytes;
	struct meta_usage meta;
	char nvme_dir[256], dram_dir[256], remote[256];
};
void engine_status(struct engine *e, struct engine_status *out);

struct file_state {
	enum level level; /* slowest tier it has reached in order */
	bool writing;     /* content newer than its version */
	bool in_dram, on_nvme, on_remote; /* copies there now */
	uint64_t seq; /* of it, or of its path if that is newer */
	uint64_t size;
};
MUST_CHECK int engine_file_state(struct engine *e, uint64_t ino,
				 struct file_state *out);

struct tree_state {
	uint64_t n_files, n_dirs, bytes;
	uint64_t n_at[3],
		bytes_at[3]; /* by level reached; a file counts once */
	uint64_t n_writing;
	uint64_t seq;     /* largest number in it, or of its path if newer */
	enum level level; /* all of it has reached, directories too */
};
MUST_CHECK int engine_tree_state(struct engine *e, uint64_t ino,
				 struct tree_state *out);

/* Drops DRAM copies (level nvme) and NVMe copies too (level remote) of what
 * has safely reached that level, of ino or all below. Open files stay. */
MUST_CHECK int engine_evict(struct engine *e, uint64_t ino, enum level level,
			    uint64_t *bytes, uint64_t *n_files);

/* Of the NVMe filesystem; free is what can still be promised. */
MUST_CHECK int engine_statfs(struct engine *e, struct statvfs *out);

#endif
