/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the publisher (publish_*.c).
 *
 *   publish_thread.c   the thread, standing still and going on, status
 *   publish_window.c   reading events, staging their bytes in parallel
 *   publish_event.c    one event on the remote
 *   publish_step.c     from R to a later number in one step
 *
 * Everything but the staging runs in one thread.
 */
#ifndef CKPT_ENGINE_PUBLISH_CORE_H
#define CKPT_ENGINE_PUBLISH_CORE_H

#include <stdbool.h>
#include <sys/queue.h>

#include "engine/publish.h"

/* Beside -errno, inside the publisher only: a version's bytes are gone, or
 * the remote does not look as it should: step to a later number. */
#define PUBLISH_STEP 1

#define N_STAGERS 3

struct pub_event {
	STAILQ_ENTRY(pub_event) next;
	struct event ev; /* all it points to is owned */
	int staged;      /* SEAL: 0, -errno, PUBLISH_STEP */
};
STAILQ_HEAD(pub_events, pub_event);

struct publisher {
	struct engine *e;
	struct meta *m;
	struct remote *r; /* held */
	pthread_t thread;
	struct mutex lock;
	pthread_cond_t wake, over;
	bool kicked, stop, ended, abandoned; /* guarded by lock */
	struct publish_status status;        /* guarded by lock */
	_Atomic uint64_t bytes_done, pin;
	bool attached; /* the thread's own, like the rest */
	bool cleaned;  /* what an earlier daemon left staged is gone */
	bool remarked; /* an event was done whose repetition would hurt */
};

/* publish_thread.c: after every call on the remote: a thread that was left
 * to itself ends here and touches nothing any more. */
int remote_back(struct publisher *p, int err);
bool publish_stopping(struct publisher *p);

/* publish_window.c */
MUST_CHECK int window_read(struct publisher *p, uint64_t after,
			   struct pub_events *w, uint64_t *last);
void window_free(struct pub_events *w);
void window_stage(struct publisher *p, struct pub_events *w);
/*
 * Attributes of rec as the remote should have them; crcs from copy, if any
 * (taken over). xattrs as of the view.
 */
MUST_CHECK int attr_of(struct publisher *p, const struct view *v,
		       const struct inode_rec *rec, uint64_t version,
		       struct copy_rec *copy, struct remote_attr *out);
/* Bytes of a version to their place out of sight; attr filled. */
MUST_CHECK int stage_version(struct publisher *p, const struct view *v,
			     const struct inode_rec *rec, uint64_t version,
			     struct remote_attr *attr);
/* The remote has this version now. */
MUST_CHECK int note_remote_copy(struct publisher *p, uint64_t version,
				const struct remote_attr *attr);

/* publish_event.c: 0, -errno, PUBLISH_STEP. */
MUST_CHECK int event_apply(struct publisher *p, struct pub_event *pe);
/* Must R be synced before and after it? */
bool event_is_drastic(const struct event *ev);

/* What was done to path moved its folder's mtime there: put it right. */
MUST_CHECK int folder_times(struct publisher *p, const struct view *v,
			    const char *path);

/* publish_step.c */
MUST_CHECK int view_of_path(const struct view *v, const char *path,
			    struct inode_rec *out);
MUST_CHECK int step_to_now(struct publisher *p);

#endif
