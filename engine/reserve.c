/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of the DRAM tier, and the ballast that keeps its memory ours.
 *
 * The ballast is one file whose bytes [0, ballast) are allocated and have been
 * written to, so that the memory behind them is real (a hypervisor gives it
 * only on first touch, slowly, and takes it back when the guest leaves it
 * free). It grows at its end by a thread, and shrinks from its end, by
 * punching, in the thread of whoever takes.
 *
 * No lock is held over either. A taker first lowers `ballast` and then
 * punches what it lowered it by; the grower allocates a slice behind
 * `ballast` and only then, if `ballast` still is where it began and still may
 * grow, raises it; else it punches the slice away again. So the two never
 * touch the same bytes, and for a moment one slice too much may be allocated,
 * which the tmpfs's headroom and slack hold.
 *
 * Growing after a give must begin at once: freed memory is still backed for
 * about two seconds, and filling it is 10 to 30 times faster than later.
 */
#include "engine/reserve.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "engine/extent.h"
#include "engine/spare.h"
#include "engine/thread.h"

#define BALLAST_NAME "ballast"
#define PAGE_2M (UINT64_C(2) << 20)
#define SLICE_LEN (UINT64_C(64) << 20)
#define SLACK_MOST (UINT64_C(64) << 20)
#define TOUCH_LEN ((size_t)256 << 10)
#define LOOK_AGAIN_S 5

struct reserve {
	uint64_t limit, slack; /* immutable */
	bool with_ballast;     /* immutable */
	bool alone;            /* on its filesystem; immutable */
	int dir_fd, fd;        /* immutable */
	void *pattern;         /* TOUCH_LEN bytes; immutable */
	pthread_t grower;

	struct mutex lock;
	pthread_cond_t wake;    /* the grower may have something to do */
	pthread_cond_t settled; /* it has nothing to do */
	uint64_t charged;       /* guarded by lock */
	uint64_t promised;      /* guarded by lock */
	uint64_t held;         /* beside the ballast, at the last look (at first
				   what start-up has yet to charge), less
				   what was given since; guarded by lock */
	uint64_t ballast;      /* guarded by lock */
	uint64_t spare_target; /* what the machine allows; by lock */
	char note[160];        /* guarded by lock */
	bool idle, stopping;   /* guarded by lock */
};

static uint64_t down_2m(uint64_t len)
{
	return len / PAGE_2M * PAGE_2M;
}

static uint64_t taken_locked(const struct reserve *r) MUST_HOLD(r->lock);
static uint64_t taken_locked(const struct reserve *r)
{
	return r->charged > r->held ? r->charged : r->held;
}

/* What the ballast should be, whatever the machine can spare. */
static uint64_t wanted_locked(const struct reserve *r) MUST_HOLD(r->lock);
static uint64_t wanted_locked(const struct reserve *r)
{
	uint64_t taken = taken_locked(r) + r->slack;

	return taken < r->limit ? down_2m(r->limit - taken) : 0;
}

static uint64_t target_locked(const struct reserve *r) MUST_HOLD(r->lock);
static uint64_t target_locked(const struct reserve *r)
{
	uint64_t wanted = wanted_locked(r);

	return wanted < r->spare_target ? wanted : r->spare_target;
}

/* ---- taking and giving ---- */

/*
 * Lowers the ballast after `len` more was charged. Little comes out of slack;
 * much must come out of the ballast, whose memory is real: slack's is not.
 * Returns the bytes to punch, which begin at r->ballast.
 */
static uint64_t lower_locked(struct reserve *r, uint64_t len)
	MUST_HOLD(r->lock);
static uint64_t lower_locked(struct reserve *r, uint64_t len)
{
	uint64_t wanted = wanted_locked(r), before = r->ballast;
	bool slack_will_do = taken_locked(r) + r->ballast <= r->limit;

	if (wanted >= before || (slack_will_do && len < PAGE_2M))
		return 0;
	r->ballast = wanted;
	return before - wanted;
}

/* Best effort: what cannot be punched is found again by the grower. */
static void punch(struct reserve *r, uint64_t off, uint64_t len)
{
	if (len)
		(void)!extent_punch(r->fd, off, len);
}

static bool has_room_locked(const struct reserve *r, uint64_t len)
	MUST_HOLD(r->lock);
static bool has_room_locked(const struct reserve *r, uint64_t len)
{
	uint64_t taken;

	if (len > r->limit)
		return false;
	/* What lies there uncharged may be what is being charged now. */
	taken = r->charged + len > r->held ? r->charged + len : r->held;
	return taken + r->promised <= r->limit;
}

int reserve_take(struct reserve *r, uint64_t len)
{
	uint64_t off = 0, punched = 0;
	int rc = 0;

	mutex_lock(&r->lock);
	if (!has_room_locked(r, len)) {
		rc = -ENOSPC;
	} else {
		r->charged += len;
		punched = lower_locked(r, len);
		off = r->ballast;
	}
	mutex_unlock(&r->lock);
	punch(r, off, punched);
	return rc;
}

/* `promised` of it was promised before. */
static void charge(struct reserve *r, uint64_t len, uint64_t promised)
{
	uint64_t off, punched;

	mutex_lock(&r->lock);
	r->promised -= promised;
	r->charged += len;
	punched = lower_locked(r, len);
	off = r->ballast;
	mutex_unlock(&r->lock);
	punch(r, off, punched);
}

int reserve_promise(struct reserve *r, uint64_t len)
{
	int rc = 0;

	mutex_lock(&r->lock);
	if (has_room_locked(r, len))
		r->promised += len;
	else
		rc = -ENOSPC;
	mutex_unlock(&r->lock);
	return rc;
}

void reserve_forgo(struct reserve *r, uint64_t len)
{
	mutex_lock(&r->lock);
	r->promised -= len;
	mutex_unlock(&r->lock);
}

void reserve_charge(struct reserve *r, uint64_t len)
{
	charge(r, len, 0);
}

void reserve_take_promised(struct reserve *r, uint64_t len)
{
	charge(r, len, len);
}

/* The grower, if it may go on. A number so small is slack, and waking costs
 * more than it. */
static void wake_locked(struct reserve *r) MUST_HOLD(r->lock);
static void wake_locked(struct reserve *r)
{
	if (r->with_ballast && wanted_locked(r) > r->ballast) {
		r->idle = false;
		pthread_cond_signal(&r->wake);
	}
}

void reserve_give(struct reserve *r, uint64_t len)
{
	mutex_lock(&r->lock);
	r->charged -= len < r->charged ? len : r->charged;
	r->held -= len < r->held ? len : r->held;
	wake_locked(r);
	mutex_unlock(&r->lock);
}

/* ---- what was taken without asking ---- */

static uint64_t ballast_blocks(const struct reserve *r)
{
	struct stat st;

	return r->fd < 0 || fstat(r->fd, &st) ? 0
					      : (uint64_t)st.st_blocks * 512;
}

/* Rather too little: a slice that comes or goes meanwhile is ballast. */
static uint64_t look_beside_ballast(const struct reserve *r)
{
	uint64_t before = ballast_blocks(r), after, used;
	struct statvfs v;

	if (!r->alone || fstatvfs(r->dir_fd, &v))
		return 0;
	used = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize;
	after = ballast_blocks(r);
	if (after < before)
		after = before;
	return used > after ? used - after : 0;
}

uint64_t reserve_look(struct reserve *r)
{
	uint64_t held = look_beside_ballast(r), off, punched, over;
	bool fell;

	mutex_lock(&r->lock);
	fell = held < r->held;
	r->held = held;
	punched = lower_locked(r, 0);
	off = r->ballast;
	over = taken_locked(r) > r->limit ? taken_locked(r) - r->limit : 0;
	if (fell)
		wake_locked(r);
	mutex_unlock(&r->lock);
	punch(r, off, punched);
	return over;
}

/* ---- growing ---- */

/*
 * True as long as the slice that began at `begin` is still wanted: then the
 * grower may go on to `end`.
 */
static bool still_wanted(struct reserve *r, uint64_t begin, uint64_t end)
{
	bool wanted;

	mutex_lock(&r->lock);
	wanted = !r->stopping && r->ballast == begin && end <= wanted_locked(r);
	mutex_unlock(&r->lock);
	return wanted;
}

/* Writes to every page; not zeros, which a hypervisor may look for. */
static int touch(struct reserve *r, uint64_t begin, uint64_t end)
{
	for (uint64_t off = begin; off < end; off += TOUCH_LEN) {
		size_t len = end - off < TOUCH_LEN ? (size_t)(end - off)
						   : TOUCH_LEN;

		if (off % PAGE_2M == 0 && !still_wanted(r, begin, end))
			return -EAGAIN;
		if (pwrite(r->fd, r->pattern, len, (off_t)off) < 0)
			return -errno;
	}
	return 0;
}

static int slice_fill(struct reserve *r, uint64_t begin, uint64_t end)
{
	int rc;

	do
		rc = fallocate(r->fd, 0, (off_t)begin, (off_t)(end - begin));
	while (rc && errno == EINTR);
	if (rc)
		return -errno;
	return touch(r, begin, end);
}

/* true: the slice is part of the ballast now. */
static bool slice_keep(struct reserve *r, uint64_t begin, uint64_t end)
{
	bool kept;

	mutex_lock(&r->lock);
	kept = r->ballast == begin && end <= wanted_locked(r);
	if (kept)
		r->ballast = end;
	mutex_unlock(&r->lock);
	return kept;
}

static void note_set(struct reserve *r, uint64_t ballast, const char *why)
{
	mutex_lock(&r->lock);
	r->spare_target = why ? ballast : UINT64_MAX;
	if (why)
		snprintf(r->note, sizeof(r->note),
			 "the reserve stops at %" PRIu64 " MiB: %s",
			 ballast >> 20, why);
	else
		r->note[0] = '\0';
	mutex_unlock(&r->lock);
}

/* One slice. false: there is none to be had now, and the note says why. */
static bool grow(struct reserve *r, uint64_t begin, uint64_t wanted)
{
	uint64_t len = wanted - begin, spare;
	char why[112];
	int rc;

	if (len > SLICE_LEN)
		len = SLICE_LEN;
	spare = spare_memory(why, sizeof(why));
	if (spare < len)
		len = down_2m(spare);
	if (!len) {
		note_set(r, begin, why);
		return false;
	}
	rc = slice_fill(r, begin, begin + len);
	if (!rc && slice_keep(r, begin, begin + len)) {
		note_set(r, begin + len, NULL);
		return true;
	}
	punch(r, begin, len);
	if (!rc || rc == -EAGAIN)
		return true; /* someone took or gave meanwhile: look again */
	note_set(r, begin, strerror(-rc));
	return false;
}

static void wait_locked(struct reserve *r, bool for_room) MUST_HOLD(r->lock);
static void wait_locked(struct reserve *r, bool for_room)
{
	struct timespec until;

	r->idle = true;
	pthread_cond_broadcast(&r->settled);
	if (!for_room) {
		pthread_cond_wait(&r->wake, &r->lock.m);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOOK_AGAIN_S;
	(void)pthread_cond_timedwait(&r->wake, &r->lock.m, &until);
}

/* Waits for work. false: stopping. */
static bool next_slice(struct reserve *r, bool stuck, uint64_t *begin,
		       uint64_t *wanted)
{
	bool stopping;

	mutex_lock(&r->lock);
	while (!r->stopping && (stuck || wanted_locked(r) <= r->ballast)) {
		wait_locked(r, stuck);
		stuck = false;
	}
	r->idle = false;
	*begin = r->ballast;
	*wanted = wanted_locked(r);
	stopping = r->stopping;
	mutex_unlock(&r->lock);
	return !stopping;
}

static void *grower_run(void *arg)
{
	struct reserve *r = arg;
	uint64_t begin, wanted;
	bool stuck = false;

	thread_lower_priority();
	while (next_slice(r, stuck, &begin, &wanted))
		stuck = !grow(r, begin, wanted);
	return NULL;
}

/* ---- starting and stopping ---- */

/* What lies in the directory beside the ballast, before anyone charges it. */
static uint64_t others_bytes(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	uint64_t sum = 0;
	struct dirent *e;
	struct stat st;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, BALLAST_NAME) != 0 &&
		    !fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_blocks * 512;
	if (d)
		closedir(d);
	else
		close_p(&fd);
	return sum;
}

/*
 * A killed daemon's ballast is still filled: carry on with it, up to its
 * first hole. Behind that there may be more; it is given back.
 */
static int adopt(struct reserve *r)
{
	off_t hole = lseek(r->fd, 0, SEEK_HOLE);
	struct stat st;

	if (fstat(r->fd, &st))
		return -errno;
	mutex_lock(&r->lock);
	r->ballast = hole < 0 ? 0 : down_2m((uint64_t)hole);
	if (r->ballast > wanted_locked(r))
		r->ballast = wanted_locked(r);
	hole = (off_t)r->ballast;
	mutex_unlock(&r->lock);
	if (st.st_size > hole)
		punch(r, (uint64_t)hole, (uint64_t)(st.st_size - hole));
	return 0;
}

/* The directory is the root of a filesystem. */
static bool is_alone(int dir_fd)
{
	struct stat here, above;

	return !fstat(dir_fd, &here) && !fstatat(dir_fd, "..", &above, 0) &&
	       here.st_dev != above.st_dev;
}

static int ballast_start(struct reserve *r)
{
	int rc;

	r->pattern = malloc(TOUCH_LEN);
	if (!r->pattern)
		return -ENOMEM;
	memset(r->pattern, 0xc5, TOUCH_LEN);
	r->fd = openat(r->dir_fd, BALLAST_NAME,
		       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (r->fd < 0)
		return -errno;
	r->held = others_bytes(r->dir_fd);
	rc = adopt(r);
	if (rc)
		return rc;
	return thread_start(&r->grower, "ckpt-reserve", grower_run, r);
}

static void reserve_free(struct reserve *r)
{
	if (r->dir_fd >= 0)
		(void)unlinkat(r->dir_fd, BALLAST_NAME, 0);
	close_p(&r->fd);
	close_p(&r->dir_fd);
	free(r->pattern);
	pthread_cond_destroy(&r->wake);
	pthread_cond_destroy(&r->settled);
	mutex_fini(&r->lock);
	free(r);
}

int reserve_start(const char *dir, uint64_t limit, bool ballast,
		  struct reserve **out)
{
	struct reserve *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r)
		return -ENOMEM;
	r->limit = limit;
	r->slack = limit / 16 < SLACK_MOST ? limit / 16 : SLACK_MOST;
	r->with_ballast = ballast;
	r->spare_target = UINT64_MAX;
	r->fd = -1;
	mutex_init(&r->lock);
	condition_init(&r->wake);
	condition_init(&r->settled);
	r->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r->dir_fd < 0)
		rc = -errno;
	r->alone = !rc && is_alone(r->dir_fd);
	if (!rc && ballast)
		rc = ballast_start(r);
	else if (!rc)
		(void)unlinkat(r->dir_fd, BALLAST_NAME, 0);
	if (rc) {
		reserve_free(r);
		return rc;
	}
	*out = r;
	return 0;
}

void reserve_stop(struct reserve *r)
{
	if (!r)
		return;
	if (r->with_ballast) {
		mutex_lock(&r->lock);
		r->stopping = true;
		pthread_cond_signal(&r->wake);
		mutex_unlock(&r->lock);
		pthread_join(r->grower, NULL);
	}
	reserve_free(r);
}

/* ---- looking ---- */

void reserve_state(struct reserve *r, struct reserve_state *out)
{
	mutex_lock(&r->lock);
	*out = (struct reserve_state){
		.limit = r->limit,
		.charged = r->charged,
		.promised = r->promised,
		.ballast = r->ballast,
		.target = r->with_ballast ? target_locked(r) : 0,
	};
	memcpy(out->note, r->note, sizeof(out->note));
	mutex_unlock(&r->lock);
}

int reserve_wait_filled(struct reserve *r, int timeout_ms)
{
	struct timespec until;
	int rc = 0;

	if (!r->with_ballast)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	mutex_lock(&r->lock);
	while (!rc && (!r->idle || r->ballast < target_locked(r)))
		rc = pthread_cond_timedwait(&r->settled, &r->lock.m, &until);
	mutex_unlock(&r->lock);
	return -rc;
}
