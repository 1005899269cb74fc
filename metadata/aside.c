/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders of database files, handled whole: kept aside, deleted, measured.
 * RocksDB keeps its files flat in one folder, so nothing here recurses far.
 */
#include "metadata/aside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PREFIX "kept-aside-"

static void closedir_p(DIR **d)
{
	if (*d)
		closedir(*d);
}

/* Deletes the folder `name` in dirfd, whose entries are plain files. */
static int delete_folder(int dirfd, const char *name)
{
	CLEANUP(closedir_p) DIR *d = NULL;
	struct dirent *e;
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	d = fdopendir(fd);
	if (!d) {
		close(fd);
		return -ENOMEM;
	}
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlinkat(fd, e->d_name, 0);
	return unlinkat(dirfd, name, AT_REMOVEDIR) ? -errno : 0;
}

int aside_delete(const char *dir)
{
	CLEANUP(close_p) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : delete_folder(fd, "db");
}

/* Deletes those there are; *last is the largest of their numbers. */
static int delete_older(DIR *d, unsigned long *last)
{
	struct dirent *e;
	int err = 0;

	*last = 0;
	while (!err && (e = readdir(d))) {
		unsigned long n;

		if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0)
			continue;
		n = strtoul(e->d_name + strlen(PREFIX), NULL, 10);
		*last = n > *last ? n : *last;
		err = delete_folder(dirfd(d), e->d_name);
	}
	return err;
}

int aside_keep(const char *dir)
{
	CLEANUP(closedir_p) DIR *d = opendir(dir);
	unsigned long last;
	char name[64];
	int err;

	if (!d)
		return -errno;
	err = delete_older(d, &last);
	if (err)
		return err;
	snprintf(name, sizeof(name), PREFIX "%lu", last + 1);
	return renameat(dirfd(d), "db", dirfd(d), name) ? -errno : 0;
}

static uint64_t folder_len(int fd)
{
	CLEANUP(closedir_p) DIR *d = fdopendir(fd);
	uint64_t len = 0;
	struct dirent *e;
	struct stat st;

	if (!d) {
		close(fd);
		return 0;
	}
	while ((e = readdir(d)))
		if (!fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(st.st_mode))
			len += (uint64_t)st.st_blocks * 512;
	return len;
}

uint64_t aside_usage(const char *dir)
{
	CLEANUP(close_p) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int db = fd < 0 ? -1
			: openat(fd, "db", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return db < 0 ? 0 : folder_len(db);
}
