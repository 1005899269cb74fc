/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that signals go to. The first SIGTERM or SIGINT unmounts: at
 * once if nothing is open, else lazily, and those who have files open get a
 * little time to close them (a job that is told to end at the same moment
 * writes its last checkpoint then). A second signal, or the end of that time,
 * ends the loop.
 */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "fs/mountpoint.h"
#include "fs/session.h"
#include "metadata/log_message.h"

#define GRACE_S 10

static void end_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
}

static void nothing(int sig)
{
	(void)sig;
}

void session_block_signals(void)
{
	struct sigaction wake = { .sa_handler = nothing };
	sigset_t set;

	end_set(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN); /* leases on backing files: its default kills */
	signal(SIGHUP, SIG_IGN);
	/* Interrupts the wait of libfuse's loop. */
	sigaction(SIGUSR1, &wake, NULL);
}

/* false: the time is over. */
static bool wait_signal(int seconds)
{
	struct timespec ts = { .tv_sec = seconds };
	sigset_t set;

	end_set(&set);
	for (;;) {
		if (sigtimedwait(&set, NULL, &ts) > 0)
			return true;
		if (errno == EAGAIN)
			return false;
	}
}

/* Unmounted lazily before, it may be there no more. */
static void leave_mount(struct session *s)
{
	const char *path = s->options->mountpoint;
	int err = mountpoint_unmount(path, &s->own, false);

	if (err == -EBUSY) {
		message_info("'%s' is busy: unmounting it lazily, files that "
			     "are open have %d s",
			     path, GRACE_S);
		err = mountpoint_unmount(path, &s->own, true);
	}
	if (err && err != -ENOENT)
		message_error("cannot unmount '%s': error %d", path, -err);
}

/*
 * The loop looks at its flag only when its wait is interrupted, and may just
 * have looked: ask again until it has heard.
 */
static void end_loop(struct session *s)
{
	const struct timespec tick = { .tv_nsec = 20000000 };

	fuse_session_exit(s->fuse);
	while (!s->loop_over) {
		pthread_kill(s->loop_thread, SIGUSR1);
		nanosleep(&tick, NULL);
	}
}

static void *signals_main(void *arg)
{
	struct session *s = arg;

	while (!wait_signal(3600))
		;
	if (s->loop_over)
		return NULL;
	message_info("told to end: unmounting '%s'", s->options->mountpoint);
	leave_mount(s);
	if (!s->loop_over)
		wait_signal(GRACE_S);
	if (!s->loop_over)
		end_loop(s);
	return NULL;
}

int signals_start(struct session *s)
{
	s->loop_thread = pthread_self();
	return -pthread_create(&s->signal_thread, NULL, signals_main, s);
}

void signals_stop(struct session *s)
{
	s->loop_over = true;
	pthread_kill(s->signal_thread, SIGINT);
	pthread_join(s->signal_thread, NULL);
}
