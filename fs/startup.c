/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipe carries the answer: one byte is success, its end is failure. What
 * failed was written to the common stderr by then. It also shows whether there
 * still is somebody to be answered: a terminal's Ctrl-C ends the caller only,
 * as the child has a session of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/startup.h"

/* Never returns. The child's own exit status says more than "failed". */
static void wait_for_answer(int fd, pid_t child)
{
	char byte;
	ssize_t n;
	int status;

	do
		n = read(fd, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(0);
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) &&
	    WEXITSTATUS(status))
		_exit(WEXITSTATUS(status));
	_exit(1);
}

int startup_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= 2);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

int startup_begin(bool foreground, struct startup *out)
{
	int fds[2];
	pid_t pid;

	*out = (struct startup){ .answer_fd = -1, .foreground = foreground };
	if (foreground)
		return 0;
	/* A lock, or a pipe whose end somebody waits for, was lent to a command
	 * that returns. */
	(void)!close_range(3, ~0u, 0);
	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid < 0) {
		int err = -errno;

		close(fds[0]);
		close(fds[1]);
		return err;
	}
	if (pid) {
		close(fds[1]);
		wait_for_answer(fds[0], pid);
	}
	close(fds[0]);
	out->answer_fd = fds[1];
	setsid();
	return 0;
}

bool startup_unwanted(const void *startup)
{
	const struct startup *s = startup;
	struct pollfd answer = { .fd = s->answer_fd };
	sigset_t pending;

	sigpending(&pending);
	if (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT))
		return true;
	return poll(&answer, 1, 0) > 0 && answer.revents & POLLERR;
}

static void let_go(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	for (int i = 0; i < 3; i++)
		dup2(fd, i);
	if (fd > 2)
		close(fd);
}

void startup_done(struct startup *s)
{
	ssize_t n;

	if (chdir("/")) {
		/* A busy directory is all that is lost. */
	}
	if (s->foreground)
		return;
	let_go();
	do
		n = write(s->answer_fd, "", 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		kill(getpid(), SIGTERM);
	close(s->answer_fd);
	s->answer_fd = -1;
}
