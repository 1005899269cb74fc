/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs behind metadata.h, for the files of this folder.
 *
 * Lock order: meta.door, path_cache.lock, store.lock (shared), then the
 * store's small ones. No callback of a user runs under any but the door.
 */
#ifndef CKPT_METADATA_INTERNAL_H
#define CKPT_METADATA_INTERNAL_H

#include <limits.h>

#include "metadata/metadata.h"
#include "metadata/path.h"
#include "metadata/state.h"
#include "metadata/store.h"

/* A readdir cookie is its transaction's number and the entry's place in it. */
#define COOKIE_BITS 3
#define EPOCH_BITS 40
#define EPOCH_MAX (UINT64_C(1) << (63 - EPOCH_BITS - COOKIE_BITS))

struct view {
	struct meta *m;
	struct store *store;
	struct snapshot *snap; /* NULL: the accepted state, as it is now */
	struct snapshot own;   /* durable views */
};

struct txn {
	struct meta *m;
	uint64_t seq;
	int error;   /* the first one since the number began */
	int broken;  /* the database is: every number has this error */
	int refused; /* unless it frees */
	bool frees, moves_dir;
	unsigned int n_dentries;
	struct bytes shared; /* operations that go into the log */
	struct bytes local;  /* those that do not, and all of ended numbers */
	struct bytes event;
	uint64_t last;     /* number that has ended, or 0 */
	size_t ended_len;  /* of those, in the log */
	size_t local_from; /* of `local`: where this number begins */
};

struct meta {
	struct store accepted, durable;
	struct view accepted_view; /* immutable */
	struct identity id;        /* immutable after meta_open() */
	uint32_t lineage;          /* the same */
	bool keep_events;          /* immutable */

	/* meta_advance()'s, kept: fresh memory each time is a third of its
	 * work. */
	struct bytes target_ops, target_contents;

	struct mutex door;
	struct txn txn;               /* guarded by door */
	unsigned int n_unchecked;     /* guarded by door: commits since the */
	size_t unchecked_len;         /* room was looked at, their bytes */
	bool no_room_at_all;          /* guarded by door */
	_Atomic bool no_room;         /* written under door */
	uint64_t accepted_generation; /* guarded by door */

	_Atomic uint64_t accepted_seq, nvme_seq, remote_seq;
	_Atomic uint64_t log_len; /* bytes of the log above D, about */
	_Atomic uint64_t next_ino, next_version;
	_Atomic bool any_xattr;  /* false: the xattr family is empty */
	_Atomic bool any_tensor; /* the same of the tensor family */

	uint64_t trimmed;   /* follower only: the log begins above this */
	uint64_t unclaimed; /* follower only: bytes cut off, still in files */
	struct mutex remote_lock;
	uint64_t gap; /* guarded by remote_lock: see state.h */

	struct path_cache paths;
};

/* A log entry (FORMAT.md). LOG_EVENTS: the mount kept events then. */
#define LOG_HEAD 6
#define LOG_EVENTS 1u

struct log_entry {
	bool events;
	struct slice event; /* len 0: none */
	struct slice ops;
};

MUST_CHECK int log_entry_decode(struct slice val, struct log_entry *out);
/* The last number in the log, or 0; bytes of the entries above `after`. */
MUST_CHECK int log_measure(struct meta *m, uint64_t after, uint64_t *last,
			   uint64_t *len);
/* Forget the entries (from, to]; unsynced. */
MUST_CHECK int log_trim(struct meta *m, uint64_t from, uint64_t to);

MUST_CHECK int event_encode(struct bytes *b, const struct event *ev);
/* *paths is malloc'ed for out->paths; the rest points into val. */
MUST_CHECK int event_decode(struct slice val, uint64_t seq, struct event *out,
			    const char ***paths);

/* Start-up (recover.c): makes the durable state consistent. */
MUST_CHECK int recover_durable(struct store *durable, uint64_t *n_dropped);

#endif
