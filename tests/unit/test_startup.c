/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon that goes into the background knows whether its caller still
 * waits; nobody is left with a mount that he did not live to hear of.
 */
#include <signal.h>
#include <sys/mman.h>

#include "check.h"
#include "fs/startup.h"

/* What the daemon of a trial tells; it has no other descriptors. */
static struct told {
	_Atomic pid_t daemon;
	atomic_bool caller_gone; /* this one tells the daemon */
	atomic_bool unwanted_early, unwanted, ended, over;
} * told;

static void as_daemon(struct startup *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	told->unwanted_early = startup_unwanted(s);
	told->daemon = getpid();
	while (!told->caller_gone)
		short_wait();
	told->unwanted = startup_unwanted(s);
	startup_done(s);
	sigpending(&set);
	told->ended = sigismember(&set, SIGTERM);
	told->over = true;
	_exit(0);
}

/* The caller's exit status. */
static int try_start(bool kill_it)
{
	struct startup s;
	pid_t caller = fork();
	int status;

	CHECK(caller >= 0);
	if (!caller) {
		CHECK_EQ(startup_begin(false, &s), 0);
		as_daemon(&s);
	}
	CHECK_SOON(told->daemon);
	if (kill_it) {
		kill(caller, SIGINT);
		CHECK_EQ(waitpid(caller, &status, 0), caller);
	}
	told->caller_gone = true;
	if (!kill_it)
		CHECK_EQ(waitpid(caller, &status, 0), caller);
	CHECK_SOON(told->over);
	return status;
}

static void test_caller_waits(void)
{
	memset(told, 0, sizeof(*told));
	CHECK_EQ(try_start(false), 0);
	CHECK(!told->unwanted_early);
	CHECK(!told->unwanted);
	CHECK(!told->ended);
}

/* Also after the last question: the answer cannot be given. */
static void test_caller_goes(void)
{
	memset(told, 0, sizeof(*told));
	CHECK_EQ(WTERMSIG(try_start(true)), SIGINT);
	CHECK(!told->unwanted_early);
	CHECK(told->unwanted);
	CHECK(told->ended);
}

static void test_signal_is_pending(void)
{
	struct startup s;
	sigset_t set;

	CHECK_EQ(startup_begin(true, &s), 0);
	CHECK(!startup_unwanted(&s));
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGINT);
	CHECK(startup_unwanted(&s));
}

int main(void)
{
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(told != MAP_FAILED);
	test_caller_waits();
	test_caller_goes();
	test_signal_is_pending();
	return 0;
}
