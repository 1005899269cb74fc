/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publish: the events of the durable log, replayed on the remote in order
 * (DESIGN.md section 4.7). One thread; it sees metadata.h (events, copies,
 * durable views), remote.h, and version_open_bytes() of version.h.
 */
#ifndef CKPT_ENGINE_PUBLISH_H
#define CKPT_ENGINE_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/remote.h"
#include "metadata/metadata.h"

struct engine;
struct publisher;

/* Holds r (remote_hold). Does no I/O on it before it returns. */
MUST_CHECK int publish_start(struct engine *e, struct meta *m, struct remote *r,
			     struct publisher **out);
/*
 * Stops between two events. A thread that hangs in the remote is given a few
 * seconds, then left to itself: it touches neither engine nor meta any more.
 * NULL allowed.
 */
void publish_stop(struct publisher *p);
/* D has moved, or somebody waits for R: do not linger. */
void publish_kick(struct publisher *p);
/*
 * Must the NVMe copy of a recorded version that was made pointless at dead_seq
 * stay? Yes, as long as a step to a number before that may want it, and gets
 * on: a remote that is full or away keeps no room from those who save.
 */
bool publish_pins(struct publisher *p, uint64_t version, uint64_t dead_seq);

struct publish_status {
	uint64_t bytes_done; /* ever, for rates */
	uint64_t n_skipped;  /* versions stepped over */
	char error[200];     /* last error while it stands still, "" if not */
	bool connected;
	uint64_t room_total, room_avail; /* of the remote, as last seen; 0, 0:
					    not known. remote_ops.room may
					    hang, this does not */
};
void publish_status(struct publisher *p, struct publish_status *out);

#endif
