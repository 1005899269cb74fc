/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events for the publisher, built inside the open transaction (the door is
 * held, so the paths are as they were before the change). What no remote
 * shows (devices, sockets, fifos) and mounts without a remote make none.
 */
#ifndef CKPT_FS_EVENT_H
#define CKPT_FS_EVENT_H

#include "fs/fs.h"

/* Does a change of something of this mode make an event? */
bool event_wanted(const struct fs *fs, uint32_t mode);

/*
 * A change of rec itself: kind, name and value of *ev are set, the rest is
 * filled in here, with all names that rec's inode has.
 */
MUST_CHECK int event_of_inode(struct fs *fs, struct txn *t, struct event *ev,
			      const struct inode_rec *rec);

/* A change of one name: rec is known as (parent, name) now, and with
 * EVENT_RENAME and EVENT_EXCHANGE becomes (parent2, name2); name2 may be
 * NULL. target: of a new symlink, else NULL. */
struct event_name {
	enum event_kind kind;
	uint64_t parent;
	const char *name;
	uint64_t parent2;
	const char *name2;
	const char *target;
};
MUST_CHECK int event_of_name(struct fs *fs, struct txn *t,
			     const struct event_name *n,
			     const struct inode_rec *rec);

/* rec, which has a name already, gets another one. */
MUST_CHECK int event_of_link(struct fs *fs, struct txn *t, uint64_t parent,
			     const char *name, const struct inode_rec *rec);

#endif
