/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The follower notes that events are missing while the publisher, which has
 * made up for those missing before, says so: the note stays.
 */
#include <pthread.h>

#include "metadata/internal.h"
#include "tests/unit/metadata_fixture.h"

#define ROUNDS 40

static struct world w;
static pthread_barrier_t both;

struct publisher {
	uint64_t seq;
	struct timespec delay;
};

static void *publish(void *arg)
{
	const struct publisher *p = arg;

	pthread_barrier_wait(&both);
	nanosleep(&p->delay, NULL);
	CHECK_EQ(meta_set_remote_seq(w.m, p->seq, true), 0);
	return NULL;
}

static void keep_events(bool keep)
{
	world_close(&w);
	w.config.keep_events = keep;
	world_open(&w);
}

/* Changes of a mount without a remote: one in D, the others in the log. */
static void change(int round)
{
	char name[32];

	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof(name), "d%d.%d", round, i);
		make_dir(w.m, META_ROOT_INO, name);
		if (!i)
			advance_all(w.m);
	}
}

static void one(int round)
{
	struct publisher p = { .delay = { 0, round % 20 * 50000L } };
	pthread_t thread;

	keep_events(false);
	change(round);
	keep_events(true);
	CHECK(w.opened.events_lost);
	p.seq = meta_nvme_seq(w.m);
	CHECK(!pthread_create(&thread, NULL, publish, &p));
	pthread_barrier_wait(&both);
	advance_all(w.m);
	CHECK(!pthread_join(thread, NULL));
	CHECK(meta_events_lost(w.m));
	world_restart(&w);
	CHECK(meta_events_lost(w.m));
	CHECK_EQ(meta_set_remote_seq(w.m, meta_nvme_seq(w.m), true), 0);
	CHECK(!meta_events_lost(w.m));
}

int main(void)
{
	CHECK(!pthread_barrier_init(&both, NULL, 2));
	world_init(&w);
	for (int i = 0; i < ROUNDS; i++)
		one(i);
	world_close(&w);
	return 0;
}
