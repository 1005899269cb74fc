/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two bounds, the lower one counts: MemAvailable of the machine, and for each
 * cgroup from ours up to the root its limit less its use (page cache that can
 * be dropped is not use). Of each a twentieth, at least 512 MiB, stays free.
 *
 * A bound that cannot be read (no /proc, a cgroup path that this container
 * does not see) is no bound.
 */
#include "engine/spare.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "metadata/compiler.h"

#define KEEP_LEAST (UINT64_C(512) << 20)
#define KEEP_SHARE 20
#define NO_LIMIT (UINT64_C(1) << 62) /* v1 says "none" with numbers above */
#define TEXT_LEN 8192
#define V1_ROOT "/sys/fs/cgroup/memory"
#define V2_ROOT "/sys/fs/cgroup"

struct bound {
	uint64_t total, avail;
	const char *who;
};

/* The names under which the two cgroup versions say the same things. */
struct cgroup_names {
	const char *root, *limit, *use, *inactive;
};

static const struct cgroup_names cgroup_v1 = {
	V1_ROOT,
	"memory.limit_in_bytes",
	"memory.usage_in_bytes",
	"\ntotal_inactive_file ",
};
static const struct cgroup_names cgroup_v2 = {
	V2_ROOT,
	"memory.max",
	"memory.current",
	"\ninactive_file ",
};

/* The text begins with a newline, so that "\nkey " finds a line's start. */
static bool file_read(const char *path, char text[TEXT_LEN])
{
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return false;
	text[0] = '\n';
	n = fread(text + 1, 1, TEXT_LEN - 2, f);
	text[n + 1] = '\0';
	fclose(f);
	return n > 0;
}

static bool number_after(const char *text, const char *key, uint64_t *out)
{
	const char *at = strstr(text, key);

	return at && sscanf(at + strlen(key), " %" SCNu64, out) == 1;
}

static bool machine_bound(struct bound *out)
{
	char text[TEXT_LEN];
	uint64_t total, avail;

	if (!file_read("/proc/meminfo", text) ||
	    !number_after(text, "\nMemTotal:", &total) ||
	    !number_after(text, "\nMemAvailable:", &avail))
		return false;
	*out = (struct bound){ total * 1024, avail * 1024, "the machine" };
	return true;
}

static bool cgroup_number(const struct cgroup_names *names, const char *path,
			  const char *file, uint64_t *out)
{
	char full[512], text[TEXT_LEN];

	snprintf(full, sizeof(full), "%s%s/%s", names->root, path, file);
	return file_read(full, text) && number_after(text, "\n", out);
}

/* "max" does not parse as a number: no bound. */
static bool cgroup_bound(const struct cgroup_names *names, const char *path,
			 struct bound *out)
{
	char full[512], text[TEXT_LEN];
	uint64_t limit, use, inactive = 0;

	if (!cgroup_number(names, path, names->limit, &limit) ||
	    !cgroup_number(names, path, names->use, &use) || limit > NO_LIMIT)
		return false;
	snprintf(full, sizeof(full), "%s%s/memory.stat", names->root, path);
	if (file_read(full, text))
		(void)number_after(text, names->inactive, &inactive);
	use -= inactive < use ? inactive : use;
	*out = (struct bound){ limit, limit > use ? limit - use : 0,
			       "the cgroup" };
	return true;
}

static uint64_t bound_keep(const struct bound *b)
{
	uint64_t keep = b->total / KEEP_SHARE;

	return keep < KEEP_LEAST ? KEEP_LEAST : keep;
}

static uint64_t bound_spare(const struct bound *b)
{
	uint64_t keep = bound_keep(b);

	return b->avail > keep ? b->avail - keep : 0;
}

/* Our own cgroup: "" is the root, "/a/b" below it. */
static bool own_path(const struct cgroup_names *names, char *path, size_t len)
{
	char text[TEXT_LEN], *at;
	const char *key = names == &cgroup_v2 ? "\n0::" : ":memory:";

	if (!file_read("/proc/self/cgroup", text))
		return false;
	at = strstr(text, key);
	if (!at)
		return false;
	at += strlen(key);
	at[strcspn(at, "\n")] = '\0';
	snprintf(path, len, "%s", strcmp(at, "/") ? at : "");
	return true;
}

/*
 * The tightest bound over our cgroup and those above it. In a container the
 * path may be the host's, unseen here; its end, the root we see, is still
 * looked at.
 */
static void cgroup_tighten(const struct cgroup_names *names,
			   struct bound *tightest)
{
	char path[384], *slash;
	struct bound b;

	if (!own_path(names, path, sizeof(path)))
		return;
	for (;;) {
		if (cgroup_bound(names, path, &b) &&
		    bound_spare(&b) < bound_spare(tightest))
			*tightest = b;
		slash = strrchr(path, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

static struct bound tightest_bound(void)
{
	struct bound b;

	if (!machine_bound(&b))
		b = (struct bound){ NO_LIMIT, NO_LIMIT, "nobody" };
	cgroup_tighten(&cgroup_v1, &b);
	cgroup_tighten(&cgroup_v2, &b);
	return b;
}

uint64_t spare_memory(char *why, size_t why_len)
{
	struct bound b = tightest_bound();

	snprintf(why, why_len,
		 "%s has %" PRIu64 " MiB available, and %" PRIu64
		 " MiB must stay free",
		 b.who, b.avail >> 20, bound_keep(&b) >> 20);
	return bound_spare(&b);
}

uint64_t spare_total(void)
{
	struct bound b = tightest_bound();
	struct bound machine;

	if (machine_bound(&machine) && machine.total < b.total)
		return machine.total;
	return b.total;
}
