/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the publisher (publish*.c).
 *
 *   publish.c            the threads, standing still and going on, status
 *   publish_folder.c     times of directories
 *   publish_stage.c      moving bytes ahead of the names, in parallel
 *   publish_replay.c     event by event
 *   publish_reconcile.c  in one step to a later number
 *   publish_plan.c       what that step must do, and in which order
 *
 * One publisher thread, N_STAGERS threads that stage. Any call on the remote
 * may hang for ever, so it stands between remote_enter() and remote_leave();
 * a thread that is there when publish_stop() loses patience is left to itself
 * and must not touch engine and meta afterwards: remote_leave() tells it.
 * Whoever is not there finishes what he does before publish_stop() returns.
 *
 * Lock: publisher.lock, a leaf; never held over I/O.
 */
#ifndef CKPT_ENGINE_PUBLISH_PARTS_H
#define CKPT_ENGINE_PUBLISH_PARTS_H

#include <stdbool.h>
#include <sys/queue.h>

#include "engine/moves.h"
#include "engine/publish.h"

#define N_STAGERS 4

/* Results of our own, beside -errno: they never leave the publisher. */
enum {
	PUB_GONE = 1,      /* a version's bytes: step to a later number */
	PUB_UNLIKE = 2,    /* the remote does not look as it should: compare */
	PUB_LOST = 4,      /* events: compare whole trees */
	PUB_START_OVER = 3 /* from R; what was done since may not be kept */
};

/* ---- staging ---------------------------------------------------------- */

enum stage_state { STAGE_QUEUED, STAGE_RUNNING, STAGE_DONE };

/* One version to stage. Shared by the publisher and one stager. */
struct stage_job {
	TAILQ_ENTRY(stage_job) next;
	enum stage_state state; /* guarded by lock */
	unsigned refs;          /* guarded by lock */
	uint64_t version;       /* immutable, like the rest below */
	char *path;             /* for messages, and to look whether it is
				   placed already; owned */
	bool repeated;          /* perhaps done by the daemon that died */
	char *from;             /* object on the remote that has the bytes, or
				   NULL; owned */
	/* The stager's until STAGE_DONE, then the publisher's. */
	struct remote_attr attr;
	bool placed;           /* at path already */
	const char *placed_at; /* reconcile: where it is now; borrowed */
	int err;               /* 0, -errno, PUB_GONE */
};

TAILQ_HEAD(stage_queue, stage_job);

/* ---- events ----------------------------------------------------------- */

/* What repeating an event after a crash would meet decides which events may
 * wait together for one synced R: see publish_replay.c. */
enum event_class { CLASS_NONE, CLASS_ADD, CLASS_REMOVE, CLASS_REPLACE };

struct pub_event {
	STAILQ_ENTRY(pub_event) next;
	struct event ev; /* all it points to is owned */
	struct stage_job *job;
};

STAILQ_HEAD(pub_events, pub_event);

/* Something that is tried again and again. */
struct attempt {
	const char *path; /* for the message */
	unsigned n;       /* failures so far */
};

/* ---- the publisher ---------------------------------------------------- */

struct publisher {
	struct engine *e; /* not after `abandoned` */
	struct meta *m;   /* not after `abandoned` */
	struct remote *r; /* held */

	struct mutex lock;
	pthread_cond_t changed; /* jobs, n_threads, n_remote, stop */
	pthread_cond_t kick;
	bool stop, kicked, abandoned;       /* guarded by lock */
	unsigned n_threads, n_remote, refs; /* guarded by lock */
	struct stage_queue queue;           /* guarded by lock */
	struct publish_status status;       /* guarded by lock: all but
					       bytes_done */
	_Atomic unsigned n_failing; /* set under lock: calls being retried */
	unsigned n_running;         /* guarded by lock: jobs in a stager */

	_Atomic uint64_t bytes_done;
	/* The step's T; UINT64_MAX: there is none. Versions from pin_version on
	 * are younger, whatever made them pointless. */
	_Atomic uint64_t pin, pin_version;
	_Atomic bool pin_lapsed;  /* what T wants may be gone */
	_Atomic int64_t moved_ns; /* when the remote last did something */
	uint64_t moved_bytes; /* the follower's: bytes_done at its last look */

	/* The publisher thread's own. */
	struct pub_events window;
	unsigned n_window;
	uint64_t read_seq;  /* last event in the window, or R */
	uint64_t done_seq;  /* all events up to here are on the remote */
	unsigned n_pending; /* of them not covered by a synced R */
	enum event_class pending;
	bool unsynced; /* the remote shows more than we know to be synced: what
			  a daemon before us did, or we before a failure. The
			  replay finds it done and does nothing about it */
	struct folders { /* whose mtime moved by what was done in them */
		char **path;
		size_t n, cap;
	} folders;
	uint64_t started_seq; /* D when this daemon began */
	bool acted; /* changed something since it set out from R: the next
		       event is not one that was done before a crash */
	bool clean; /* nothing is staged that the window does not hold */
	struct attempt over; /* what makes it start over */
	int64_t room_ns;     /* when it last asked for the remote's room */
};

/* publish.c ---- */

/* Nothing that the accepted state drops from now on goes, until a view of T
 * is there: then T is its number. */
void pin_all(struct publisher *p);
void pin_view(struct publisher *p, const struct view *v);
void pin_nothing(struct publisher *p);

/* -ECANCELED: stop. Else remote_leave() must follow. */
MUST_CHECK int remote_enter(struct publisher *p);
/* Returns err, or -ECANCELED if engine and meta must not be touched. */
MUST_CHECK int remote_leave(struct publisher *p, int err);

/*
 * After a try that returned *err: is another one due? If so it has waited
 * and attached the remote anew. A stop makes *err -ECANCELED.
 */
MUST_CHECK bool attempt_again(struct publisher *p, struct attempt *a, int *err);
/* The remote does not look as it should, or cannot hold this at all. */
bool is_unlike(int err);
bool is_impossible(int err);
/* Counts as standing still from now on, and says why; the end of it. */
void stands_still(struct publisher *p, struct attempt *a, const char *why);
void goes_on(struct publisher *p, struct attempt *a);
/* Nothing can be done about path but to try it all again: waits, and returns
 * PUB_START_OVER, or -ECANCELED. */
MUST_CHECK int stuck_at(struct publisher *p, const char *path, int err);
/* This path will be missing on the remote: says so, once, and counts it. */
void step_over(struct publisher *p, const char *path, int err);
/* Waits as long as the attempt deserves. -ECANCELED: stop. */
MUST_CHECK int wait_backoff(struct publisher *p, const struct attempt *a);

/* Runs `call` on the remote until it gives something that waiting will not
 * change: 0, an -errno about what is there, or -ECANCELED. */
#define ON_REMOTE(p, name, call)                                  \
	({                                                        \
		struct attempt attempt_ = { .path = (name) };     \
		int err_;                                         \
		do {                                              \
			err_ = remote_enter(p);                   \
			if (!err_)                                \
				err_ = remote_leave((p), (call)); \
		} while (attempt_again((p), &attempt_, &err_));   \
		err_;                                             \
	})

bool is_stopping(struct publisher *p);
/* After -ECANCELED: not even a view may be given back. */
bool is_abandoned(struct publisher *p);
/* Everything done is kept by the remote; then R := done_seq, synced. */
MUST_CHECK int checkpoint(struct publisher *p);
/* The version's bytes are on the remote now. */
MUST_CHECK int note_copy(struct publisher *p, uint64_t version,
			 const struct remote_attr *attr);
/*
 * How an object with some version is told: by an identity or, if it came from
 * others and was not made one of ours yet, as the copy record knows it.
 */
struct sought {
	char identity[64]; /* that it has, or would have as ours */
	bool of_others;    /* others[] counts, too */
	char others[64];
};
void seek_version(struct publisher *p, uint64_t version, struct sought *out);
bool is_sought(const struct sought *s, const struct remote_attr *a);
/* Before a file of others (found) with this version gets another mtime: noted,
 * for by that it is told. */
MUST_CHECK int note_time(struct publisher *p, uint64_t version,
			 const struct remote_attr *found, int64_t mtime_ns);
bool identity_is_ours(struct publisher *p, const char *identity);

/* publish_folder.c ---- */

/* What is done at path moves the mtime of its folder on the remote: noted. */
MUST_CHECK int folder_touch(struct publisher *p, const char *path);
/* The noted ones at and below from are called otherwise now, and, exchange,
 * the other way round. */
MUST_CHECK int folder_moved(struct publisher *p, const char *from,
			    const char *to, bool exchange);
/* The remote is where v is: all noted folders get the times they have there.
 */
MUST_CHECK int folder_times(struct publisher *p, const struct view *v);
void folder_forget_all(struct publisher *p);

/* publish_stage.c ---- */

void *stager_main(void *arg);
/* attr: what the object shall carry, without checksums; taken over. */
MUST_CHECK int job_new(uint64_t version, const char *path,
		       struct remote_attr *attr, struct stage_job **out);
void job_submit(struct publisher *p, struct stage_job *job);
/* Until it is done: its err, or -ECANCELED. */
MUST_CHECK int job_wait(struct publisher *p, struct stage_job *job);
/* Gives the publisher's reference back; takes it off the queue. */
void job_drop(struct publisher *p, struct stage_job *job);
/* Mode, owner, mtime, size of rec; xattrs of its inode as v has them. */
MUST_CHECK int attr_of(const struct view *v, const struct inode_rec *rec,
		       struct remote_attr *out);
/* As of the seal: an attribute that was set later shows what was done before it
 * to whoever waits for it. v: for a seal that does not tell. */
MUST_CHECK int attr_of_seal(const struct view *v, const struct event *ev,
			    struct remote_attr *out);

/* publish_replay.c ---- */

/* Up to where D is now. 0, PUB_*, -errno of the local state. */
MUST_CHECK int replay(struct publisher *p);
void window_clear(struct publisher *p);
/* The next event to replay is the one after R. */
void replay_from_remote_seq(struct publisher *p);

/* publish_reconcile.c ---- */

/* whole: do not trust the events, compare everything. As replay(). */
MUST_CHECK int reconcile(struct publisher *p, bool whole);
/* Was one begun (or asked for) and not finished? */
MUST_CHECK int reconcile_is_due(struct publisher *p, bool *due, bool *whole);

/* publish_plan.c ---- */

/* One path that the remote must be made right at. */
struct step {
	char *path;             /* owned */
	uint64_t first, last;   /* numbers: name appeared, content changed */
	bool named;             /* the events say that what was here went */
	bool moved;             /* its object was restaged for another path */
	struct inode_rec want;  /* mode 0: nothing */
	uint64_t version_seq;   /* the wanted version was sealed at */
	struct sought sought;   /* the wanted version */
	char *target;           /* of the wanted symlink; owned */
	struct remote_attr has; /* on the remote; mode 0: nothing */
	bool same;              /* content is right, whatever the attributes */
	bool skip;              /* cannot be done; said already */
	bool keep;              /* may have bytes that have no other name */
	struct stage_job *job;  /* brings the wanted version; shared */
};

struct plan {
	struct step *steps; /* by path */
	size_t n, cap;
	struct moves moves;
	struct area {
		char *path;
		uint64_t seq;
	} * areas; /* directories to be compared with all below */
	size_t n_areas, cap_areas;
	struct step **by_identity; /* those with an object of a version */
	size_t n_by_identity;
	uint64_t n_seals; /* events that sealed a version */
};

void plan_fini(struct publisher *p, struct plan *plan);
/* Reads the events up to T (the view's number) and both sides. whole: the
 * events do not tell all. */
MUST_CHECK int plan_make(struct publisher *p, const struct view *v, bool whole,
			 struct plan *out);
/* Steps that need something placed, in their order, malloc'ed: paths that are
 * new to the remote, or those that change. */
MUST_CHECK int plan_order(const struct plan *plan, bool is_new,
			  struct step ***out, size_t *n);
/* The step at whose path the remote has the bytes that s wants, or NULL. */
MUST_CHECK int plan_source(const struct plan *plan, const struct step *s,
			   struct step **out);
/* A file: nothing that comes later may be shown without it. But a path that
 * became longer than any may be has no place on any remote. */
bool step_must_be_placed(const struct step *s);
/* s will not be placed: what may have its bytes, or what others have made of
 * them, must not go. */
MUST_CHECK int plan_keep(struct plan *plan, const struct step *s);
/* -ENOENT: nothing a remote would show is at that path */
MUST_CHECK int view_path_inode(const struct view *v, const char *path,
			       struct inode_rec *out);

#endif
