/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line a fact, to one of three places. A line is one write, so lines of
 * several threads, and of keeper and worker, do not mix.
 */
#include "metadata/log_message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#define LINE_MAX_LEN 1024

static _Atomic int log_fd = STDERR_FILENO; /* -1: syslog */
static _Atomic int most_verbose = MESSAGE_INFO;

static const char *const names[] = { "error", "warning", "info", "debug" };
static const int priorities[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

static size_t add_time(char *line, size_t room)
{
	struct timespec now;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	n = strftime(line, room, "%Y-%m-%dT%H:%M:%S", &tm);
	n += (size_t)snprintf(line + n, room - n, ".%03ld ",
			      now.tv_nsec / 1000000);
	return n;
}

static void write_line(int fd, enum message_level level, const char *text)
{
	char line[LINE_MAX_LEN + 64];
	size_t n = 0, len;
	ssize_t done;

	if (fd != STDERR_FILENO)
		n = add_time(line, sizeof(line));
	n += (size_t)snprintf(line + n, sizeof(line) - n, "ckptfs: %s%s%s\n",
			      level == MESSAGE_INFO ? "" : names[level],
			      level == MESSAGE_INFO ? "" : ": ", text);
	len = n < sizeof(line) ? n : sizeof(line) - 1;
	line[len - 1] = '\n';
	/* A log that cannot be written has nowhere to say so. */
	done = write(fd, line, len);
	(void)done;
}

void message(enum message_level level, const char *fmt, ...)
{
	char text[LINE_MAX_LEN];
	int fd = log_fd, saved = errno;
	va_list ap;

	if ((int)level > most_verbose)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++) /* names of files may hold anything */
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	if (fd < 0)
		syslog(priorities[level], "%s", text);
	else
		write_line(fd, level, text);
	errno = saved;
}

int message_open_file(const char *path, int *fd)
{
	int got = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	if (got < 0)
		return -errno;
	*fd = got;
	return 0;
}

void message_to_fd(int fd)
{
	/* The one before stays open: a thread may be writing to it. */
	log_fd = fd;
}

void message_to_syslog(const char *ident)
{
	openlog(ident, LOG_PID, LOG_DAEMON);
	log_fd = -1;
}

void message_set_level(enum message_level level)
{
	most_verbose = (int)level;
}
