/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the fault points that are passed and lets one of them fail: fault.h.
 *
 * The one global of the program outside main.c and the log. A point stands in
 * the middle of whatever may fail, in all three rooms, and no argument that
 * could carry a counter reaches all of them; one that was threaded through
 * every call for the tests' sake would change the code that is tested. It is
 * read from the environment, at the first point that is passed, because points
 * are passed before any option is parsed into something that could hold it.
 */
#include "metadata/fault.h"

#if CKPT_FAULTS

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "metadata/log_message.h"

static struct {
	pthread_once_t once;
	char name[64];      /* empty: any */
	unsigned long nth;  /* 0: none */
	bool kill, log;     /* like the two above, fixed by read_arming() */
	atomic_ulong count; /* points passed that could have been the one */
} arming = { .once = PTHREAD_ONCE_INIT };

/* name, name:N, N; `:kill` is cut off already. */
static void read_place(const char *text)
{
	size_t len = strcspn(text, ":");
	char *end;

	arming.nth = strtoul(text, &end, 10);
	if (end != text && !*end)
		return;
	snprintf(arming.name, sizeof(arming.name), "%.*s", (int)len, text);
	arming.nth = text[len] ? strtoul(text + len + 1, NULL, 10) : 1;
}

static void read_arming(void)
{
	const char *text = getenv("CKPTFS_FAULT");
	static const char kill_word[] = ":kill";
	size_t len = text ? strlen(text) : 0;
	char place[80];

	if (!len)
		return;
	arming.log = strcmp(text, "log") == 0;
	if (arming.log)
		return;
	if (len >= 5 && strcmp(text + len - 5, kill_word) == 0) {
		arming.kill = true;
		len -= 5;
	}
	snprintf(place, sizeof(place), "%.*s", (int)len, text);
	read_place(place);
}

static bool is_the_one(const char *name, int err)
{
	if (!arming.nth || (!err && !arming.kill))
		return false;
	if (arming.name[0] && strcmp(arming.name, name) != 0)
		return false;
	return atomic_fetch_add(&arming.count, 1) + 1 == arming.nth;
}

int fault_pass(const char *name, int err)
{
	pthread_once(&arming.once, read_arming);
	if (arming.log)
		message_warning("fault point '%s'%s", name,
				err ? "" : " (death only)");
	if (!is_the_one(name, err))
		return 0;
	message_warning("fault '%s': %s", name,
			arming.kill ? "death" : strerror(-err));
	if (arming.kill)
		kill(getpid(), SIGKILL);
	return err;
}

bool fault_is_built(void)
{
	return true;
}

#else

int fault_pass(const char *name, int err)
{
	(void)name;
	(void)err;
	return 0;
}

bool fault_is_built(void)
{
	return false;
}

#endif
