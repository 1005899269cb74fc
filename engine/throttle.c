/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush_rate=: a clock that runs ahead of real time by what was let through.
 * Whoever comes waits until real time has caught up; after an idle spell at
 * most BURST_NS worth of bytes go at once.
 */
#include <errno.h>
#include <time.h>

#include "engine/flush.h"

#define SECOND_NS UINT64_C(1000000000)
#define BURST_NS (SECOND_NS / 10)

struct throttle {
	uint64_t rate; /* immutable; bytes per second */
	struct mutex lock;
	uint64_t next_ns; /* when the next byte may go; guarded by lock */
};

int throttle_new(uint64_t bytes_per_s, struct throttle **out)
{
	struct throttle *t = NULL;

	if (bytes_per_s) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return -ENOMEM;
		t->rate = bytes_per_s;
		mutex_init(&t->lock);
	}
	*out = t;
	return 0;
}

void throttle_free(struct throttle *t)
{
	if (!t)
		return;
	mutex_fini(&t->lock);
	free(t);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND_NS + (uint64_t)ts.tv_nsec;
}

void throttle_wait(struct throttle *t, uint64_t len)
{
	uint64_t now, start;
	struct timespec ts;

	if (!t)
		return;
	now = now_ns();
	mutex_lock(&t->lock);
	if (t->next_ns + BURST_NS < now)
		t->next_ns = now - BURST_NS;
	start = t->next_ns;
	t->next_ns += (uint64_t)((double)len * 1e9 / (double)t->rate);
	mutex_unlock(&t->lock);
	if (start <= now)
		return;
	ts.tv_sec = (time_t)(start / SECOND_NS);
	ts.tv_nsec = (long)(start % SECOND_NS);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) ==
	       EINTR)
		;
}
