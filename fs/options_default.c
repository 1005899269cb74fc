/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds where nothing was said: how much memory there is, and where the
 * local state of a mount point lies.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/options.h"

/* A number in a file of one line; UINT64_MAX if it is not there or "max". */
static uint64_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t n = UINT64_MAX;
	char line[64], *end;

	if (!f)
		return n;
	if (fgets(line, sizeof(line), f) && isdigit((unsigned char)*line)) {
		errno = 0;
		n = strtoull(line, &end, 10);
		if (errno || end == line)
			n = UINT64_MAX;
	}
	fclose(f);
	return n;
}

/* The limits of our cgroup and all above it (version 2). */
static uint64_t cgroup_limit(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	uint64_t least = UINT64_MAX;
	char line[1024], path[1200], *group = NULL, *slash;

	if (!f)
		return least;
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, "0::/", 4) == 0) {
			line[strcspn(line, "\n")] = '\0';
			group = line + 3;
			break;
		}
	fclose(f);
	while (group) {
		uint64_t n;

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max",
			 group);
		n = read_limit(path);
		least = n < least ? n : least;
		slash = strrchr(group, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return least;
}

uint64_t memory_size(void)
{
	uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) *
		       (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t limit = cgroup_limit();

	return limit < all ? limit : all;
}

/* "/mnt/my-run" → "mnt-my%2drun": one directory name, told apart. */
static void escape_path(const char *path, char *out, size_t len)
{
	size_t n = 0;

	for (path += strspn(path, "/"); *path && n + 4 < len; path++) {
		unsigned char c = (unsigned char)*path;

		if (c == '/')
			out[n++] = '-';
		else if (isalnum(c) || c == '_' || (c == '.' && n))
			out[n++] = (char)c;
		else
			n += (size_t)snprintf(out + n, len - n, "%%%02x", c);
	}
	out[n] = '\0';
}

static char *state_dir(void)
{
	const char *dir = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *out = NULL;

	if (geteuid() == 0)
		return strdup("/var/lib");
	if (dir && *dir == '/')
		return strdup(dir);
	if (!home || *home != '/' ||
	    asprintf(&out, "%s/.local/state", home) < 0)
		return NULL;
	return out;
}

/* Longer than a name may be: what is cut off goes into a number (FNV-1a). */
static uint64_t hash(const char *s)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
	return h;
}

char *default_nvme_dir(const char *mountpoint)
{
	CLEANUP(free_p) char *state = state_dir();
	char name[3 * META_PATH_MAX], *out;
	int n;

	if (!state)
		return NULL;
	escape_path(mountpoint, name, sizeof(name));
	if (!*name)
		snprintf(name, sizeof(name), "-");
	if (strlen(name) > 200)
		n = asprintf(&out, "%s/ckptfs/%.180s-%016llx", state, name,
			     (unsigned long long)hash(name));
	else
		n = asprintf(&out, "%s/ckptfs/%s", state, name);
	return n < 0 ? NULL : out;
}
