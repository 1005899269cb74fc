/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose a temporary file is. A process number proves that somebody is alive,
 * never that he is dead: he may be another container's, or another host's,
 * where no number is seen from here. So only the lock and the age tell.
 */
#include "providers/target_temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "providers/cleanup.h"

#define TEMP_MARK ".ckpt-"
#define OLD_S 60

char *temp_name(const char *name)
{
	static atomic_uint counter;
	char *temp;

	/* Of a long name the beginning must do. */
	if (asprintf(&temp, ".%.200s" TEMP_MARK "%ld-%u", name, (long)getpid(),
		     atomic_fetch_add(&counter, 1)) < 0)
		return NULL;
	return temp;
}

static bool is_number(const char *s)
{
	return *s && s[strspn(s, "0123456789")] == 0;
}

/* Is entry ".NAME.ckpt-PID-N", of whatever name? */
static bool is_temp(const char *entry, long *pid)
{
	const char *mark = NULL, *next = entry;
	char *end;

	while (entry[0] == '.' && (next = strstr(next + 1, TEMP_MARK)))
		mark = next;
	if (!mark || mark == entry)
		return false;
	*pid = strtol(mark + strlen(TEMP_MARK), &end, 10);
	return *pid > 0 && *end == '-' && is_number(end + 1);
}

/* For the moment between close and rename it is not locked. */
static bool is_old(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && time(NULL) - st.st_mtime > OLD_S;
}

/*
 * No process has its number (or it is ours, of another container); nobody has
 * locked it; and it is old, as locks may not reach other hosts.
 */
static bool is_left(int dir_fd, const char *entry, long pid)
{
	CLEANUP(close_p) int fd = -1;

	if (pid != (long)getpid() && (!kill((pid_t)pid, 0) || errno != ESRCH))
		return false;
	fd = openat(dir_fd, entry,
		    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB))
		return false;
	return is_old(fd);
}

void temp_sweep(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	long pid;

	if (!d) {
		close_p(&fd);
		return;
	}
	while ((entry = readdir(d)))
		if (is_temp(entry->d_name, &pid) &&
		    is_left(dir_fd, entry->d_name, pid))
			unlinkat(dir_fd, entry->d_name, 0);
	closedir(d);
}
