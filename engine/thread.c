/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few lines that every thread of the engine needs to begin.
 */
#include "engine/thread.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#define STACK_LEN (512 * 1024)
#define NICE_LOW 5

int thread_start(pthread_t *out, const char *name, void *(*run)(void *),
		 void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_LEN);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(out, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (rc)
		return -rc;
	pthread_setname_np(*out, name);
	return 0;
}

void thread_lower_priority(void)
{
	/* On Linux a nice value is a thread's, whatever POSIX says. */
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE_LOW);
}

void condition_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}
