/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory whose filesystem does not answer: whoever attaches it is told so
 * in time, one thread hangs there, however often it is tried, and when it
 * answers again, all is well.
 */
#include <pthread.h>
#include <sys/syscall.h>

#include "tests/unit/publish_fixture.h"

static const char *hanging; /* where mkdir() hangs, set before any thread */
static pthread_mutex_t answers = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned n_hung;

/* ThreadSanitizer's own mkdir() does not let another stand in. */
#ifndef __SANITIZE_THREAD__
/* Stands in for that of the C library. */
int mkdir(const char *path, mode_t mode)
{
	if (hanging && !strcmp(path, hanging)) {
		n_hung++;
		pthread_mutex_lock(&answers);
		pthread_mutex_unlock(&answers);
	}
	return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
#endif

static int attach(struct remote *r)
{
	char id[REMOTE_ID_ROOM] = "", why[256] = "";

	return r->ops->attach(r, id, why, sizeof(why));
}

static void *attach_in_vain(void *r)
{
	CHECK_EQ(attach(r), -ETIMEDOUT);
	return NULL;
}

int main(void)
{
	pthread_t t[4];
	struct remote *r;

#ifdef __SANITIZE_THREAD__
	SKIP("ThreadSanitizer has a mkdir() of its own");
#endif
	hanging = strdup(at(check_tmpdir(), "store"));
	CHECK_EQ(remote_open(hanging, &r), 0);
	pthread_mutex_lock(&answers);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, attach_in_vain, r), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	CHECK_EQ(n_hung, 1);
	pthread_mutex_unlock(&answers);
	CHECK_EQ(attach(r), 0);
	CHECK_EQ(n_hung, 1);
	remote_put(r);
	free((char *)hanging);
	return 0;
}
